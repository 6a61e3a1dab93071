"""What NCCL does, as pure functions; rules carry the source file they follow."""
