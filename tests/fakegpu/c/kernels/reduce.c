/* Reductions of a chunk; narrow floats are reduced as float and rounded after each step, as the kernels do. */
#include "reduce.h"
#include <string.h>

/* ncclDataType_t (nccl.h): number, signed and unsigned type of that width; the same for both signs, as from 2.24 on (for all but
 * the division from 2.20 on) one function of NCCL serves both. */
#define INTEGERS(X) X(0, int8_t, uint8_t) X(1, int8_t, uint8_t) X(2, int32_t, uint32_t) X(3, int32_t, uint32_t) \
                    X(4, int64_t, uint64_t) X(5, int64_t, uint64_t)
/* Number, type, as what it is reduced. */
#define FLOATS(X) X(6, half, float) X(7, float, float) X(8, double, double) X(9, bfloat, float)
typedef _Float16 half;
typedef struct {
  uint16_t bits;
} bfloat;

static float from_bfloat(bfloat b) {
  uint32_t bits = (uint32_t)b.bits << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static bfloat to_bfloat(float value) { /* to the nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return (bfloat){0x7fff};
  return (bfloat){(bits + 0x7fff + (bits >> 16 & 1)) >> 16};
}
#define WIDE(x) _Generic((x), bfloat: from_bfloat, half: from_half, float: same_float, double: same_double)(x)
static float from_half(half x) { return x; }
static float same_float(float x) { return x; }
static double same_double(double x) { return x; }
static void store_half(half *out, float x) { *out = (half)x; }
static void store_float(float *out, float x) { *out = x; }
static void store_double(double *out, double x) { *out = x; }
static void store_bfloat(bfloat *out, float x) { *out = to_bfloat(x); }
#define STORE(out, x) _Generic((out), half *: store_half, float *: store_float, double *: store_double, bfloat *: store_bfloat)(out, x)

size_t element_size(int type) {
  static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 0;
}

int reduction_known(const struct reduction *r) {
  if (r->type < 0 || r->type > 9) return 0; /* not float8 */
  if (r->kind == SUM_POST_DIVIDED) return r->type <= 5;
  return r->kind >= SUM && r->kind <= PRE_MULTIPLIED_SUM;
}

/* FuncMinMax of integers: the smaller one after XOR with a mask (sign bit, all bits for the maximum). */
#define INTEGER_INTO(number, type, bits) \
  case number: { \
    bits *a = (bits *)data; \
    const bits *b = (const bits *)other; \
    bits mask = (bits)r->argument; \
    for (size_t i = 0; i < count; i++) { \
      if (r->kind == PRODUCT) a[i] *= b[i]; \
      else if (r->kind != MIN_MAX) a[i] += b[i]; \
      else if ((bits)(b[i] ^ mask) < (bits)(a[i] ^ mask)) a[i] = b[i]; \
    } \
    break; \
  }
/* FuncMinMax of floats: the minimum where the argument is even; a NaN gives way, as with fminf(). */
#define FLOAT_INTO(number, type, wide) \
  case number: { \
    type *a = (type *)data; \
    const type *b = (const type *)other; \
    for (size_t i = 0; i < count; i++) { \
      wide x = WIDE(a[i]), y = WIDE(b[i]); \
      if (r->kind == PRODUCT) STORE(&a[i], x * y); \
      else if (r->kind != MIN_MAX) STORE(&a[i], x + y); \
      else if (x != x || (r->argument & 1 ? y > x : y < x)) a[i] = b[i]; \
    } \
    break; \
  }
void reduce_into(const struct reduction *r, char *data, const char *other, size_t count) {
  switch (r->type) {
    INTEGERS(INTEGER_INTO)
    FLOATS(FLOAT_INTO)
  }
}

#define INTEGER_TIMES(number, type, bits) \
  case number: \
    for (size_t i = 0; i < count; i++) ((bits *)data)[i] *= (bits)r->argument; \
    break;
#define FLOAT_TIMES(number, type, wide) \
  case number: { \
    type scalar; \
    memcpy(&scalar, &r->argument, sizeof scalar); \
    for (size_t i = 0; i < count; i++) STORE(&((type *)data)[i], WIDE(((type *)data)[i]) * WIDE(scalar)); \
    break; \
  }
void reduce_before(const struct reduction *r, char *data, size_t count) {
  if (r->kind != PRE_MULTIPLIED_SUM) return;
  switch (r->type) {
    INTEGERS(INTEGER_TIMES)
    FLOATS(FLOAT_TIMES)
  }
}

/* FuncSumPostDiv as 2.24 has it: the argument is the divisor, doubled, and 1 where the type is signed. */
#define INTEGER_DIVIDED(number, type, bits) \
  case number: \
    for (size_t i = 0; i < count; i++) \
      if (r->argument & 1) ((type *)data)[i] /= (type)divisor; \
      else ((bits *)data)[i] /= (bits)divisor; \
    break;
void reduce_after(const struct reduction *r, char *data, size_t count) {
  uint64_t divisor = r->argument >> 1;
  if (r->kind != SUM_POST_DIVIDED || !divisor) return;
  switch (r->type) { INTEGERS(INTEGER_DIVIDED) }
}
