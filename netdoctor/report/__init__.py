"""A renderer a format.  It reads a report and nothing else."""
