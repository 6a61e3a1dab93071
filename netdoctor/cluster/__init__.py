"""Several nodes meet, try each other and run one all-reduce together."""
