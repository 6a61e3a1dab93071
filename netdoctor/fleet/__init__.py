"""Many node reports become one: who is missing, who differs, who is slow, and what no node can see alone."""
