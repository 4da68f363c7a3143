"""The command line: one verb a file, and nothing is imported that does not run."""
