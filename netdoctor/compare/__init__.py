"""Rules between nodes, whoever brought their words: a live meeting or report files."""
