"""The commands of prl-train: one verb a file; what a verb needs is imported when it runs."""
