"""What a process owes its system: files, streams, signals, users."""
