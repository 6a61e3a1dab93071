/* Inside of the fake libnvidia-ml.so.1.  Numbers are those of NVML's public header. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H
#include "fake.h"

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  CORRUPTED_INFOROM = 14,
  GPU_IS_LOST = 15,
};

/* What a handle points to; instance -1 is the GPU itself, else one of its MIG instances. */
struct device {
  int gpu, instance;
};
struct device *nvml_device(int gpu);
int nvml_ready(void);
int nvml_text(const char *from, char *to, unsigned room);

/* A later name of an entry point that does the same; faults go by the first name. */
#define SAME(later, first) extern __typeof__(first) later __attribute__((alias(#first), visibility("default")))

/* First lines of each entry point about a GPU: trace and ordered faults, NVML initialised, the GPU still there. */
#define ENTER_NVML(...) \
  do { \
    ENTER(__VA_ARGS__); \
    if (!nvml_ready()) return UNINITIALIZED; \
  } while (0)
#define ENTER_GPU(d, ...) \
  do { \
    ENTER_NVML(__VA_ARGS__); \
    if (!(d)) return INVALID_ARGUMENT; \
    if (fake_number(0, "gpu.%d.lost", (d)->gpu)) return GPU_IS_LOST; \
  } while (0)
#endif
