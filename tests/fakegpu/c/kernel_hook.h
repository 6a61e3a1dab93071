/* What a stand-in for kernels offers: a library that the machine's file names (key "kernels").  The driver calls it on the
 * stream's thread, in the order of the stream; until it returns the kernel is running. */
#ifndef KERNEL_HOOK_H
#define KERNEL_HOOK_H
#include <stddef.h>

/* `args` are the kernel's parameters as one buffer of `size` bytes, a copy that was made at the launch (so they may be
 * changed); dims are grid x, y, z, block x, y, z, and bytes of shared memory.  Returns 0, or the CUDA error that the kernel ends
 * with: its context is broken then, as after any kernel's failure. */
int fake_kernel(const char *name, const unsigned dims[7], void *args, size_t size);

/* Optional.  Where a launch gives pointers to parameters (not one buffer), the driver cannot know how many there are and how
 * long: this tells it, by the kernel's name.  Writes up to 16 sizes and returns their number; 0: an unknown kernel.  The
 * buffer that fake_kernel() gets has each parameter at the next multiple of the largest power of two <= 8 that divides it.
 * Without this function, or for 0, a kernel of NCCL gets the first 64 bytes behind its first parameter. */
unsigned fake_kernel_params(const char *name, unsigned sizes[16]);
#endif
