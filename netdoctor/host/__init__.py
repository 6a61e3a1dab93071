"""The only door to the machine: questions in, answers or Unavailable out."""
