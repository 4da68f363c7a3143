"""What any engine must answer, whatever serves it."""
