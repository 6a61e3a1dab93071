"""The command line: parse, call, deliver.  One file a command."""
