"""One all-reduce in the job's own Python."""
