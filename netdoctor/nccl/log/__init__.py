"""Bytes of a log become LogFacts."""
