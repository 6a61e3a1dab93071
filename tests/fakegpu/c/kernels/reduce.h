/* What NCCL's reductions do to the elements of a chunk (src/device/reduce_kernel.h). */
#ifndef REDUCE_H
#define REDUCE_H
#include <stddef.h>
#include <stdint.h>

enum reduction_kind { SUM, PRODUCT, MIN_MAX, PRE_MULTIPLIED_SUM, SUM_POST_DIVIDED }; /* ncclDevRedOp_t */

struct reduction {
  int kind, type;    /* ncclDataType_t */
  uint64_t argument; /* what the work carries: a scalar's bits, a mask */
};

size_t element_size(int type);
/* 0: these elements cannot be reduced here so. */
int reduction_known(const struct reduction *reduction);
void reduce_before(const struct reduction *reduction, char *data, size_t count); /* of a rank's own input */
void reduce_into(const struct reduction *reduction, char *data, const char *other, size_t count);
void reduce_after(const struct reduction *reduction, char *data, size_t count); /* of the result */
#endif
