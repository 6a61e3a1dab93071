"""One YAML file, NETDOCTOR_* variables and options become one Config."""
