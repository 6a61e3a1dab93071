/* What the three fake libraries share: the machine that they answer for, the faults that it orders, a trace.
 *
 * FAKEGPU_MACHINE names the machine's file, else the link /dev/fakegpu leads there (namespace.py makes it): a driver answers
 * whatever the environment is, and root's helpers of netdoctor get no variable of a stranger's.  tests/fakegpu/machine.py writes
 * the file: one "KEY VALUE" a line.  Lines that may stand there more than once:
 *   fault CALL WHICH RESULT   the WHICH-th call of CALL ("3", "3+" that one and all later ones, "*" every one) returns RESULT,
 *                             never returns ("hang"), or takes so long ("300ms").  CALL is a function without its _v2, or one of the
 *                             moments that are no call: "kernel" (a launched kernel fails), "completion" (of RDMA).
 *   event DEVICE NUMBER PORT AFTER   an asynchronous event of an HCA, after so many posted sends of this process.
 */
#ifndef FAKE_H
#define FAKE_H
#include <stddef.h>

#define API __attribute__((visibility("default")))
#define FAKE_MAX_GPUS 64
#define MACHINE "/dev/fakegpu"

struct fake_gpu {
  unsigned domain, bus, device;
  unsigned char uuid[16];
  char address[32];
};

extern int fake_gpus;
extern struct fake_gpu fake_gpu[FAKE_MAX_GPUS];

/* The machine's file; NULL where none is named. */
const char *fake_machine(void);
/* The value of a key; the key is a printf format. */
const char *fake_text(const char *missing, const char *key, ...) __attribute__((format(printf, 2, 3)));
long long fake_number(long long missing, const char *key, ...) __attribute__((format(printf, 2, 3)));
/* GPU by PCI address; -1 where there is none. */
int fake_gpu_at(const char *address);

/* One "event" line at a time, from *at = 0 on; 0 where there is no more. */
struct fake_event {
  char device[64];
  int number, port, after;
};
int fake_next_event(int *at, struct fake_event *out);

/* Trace the call, and what a fault line orders for it (0: nothing).  Does not return where that is "hang". */
int fake_enter(const char *function, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As fake_enter for the moments that are no call, without a trace. */
int fake_ordered(const char *moment);
/* What must be seen even without a trace, on stderr. */
void fake_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* First line of each entry point that returns a result code; the arguments are a format for the trace and its values. */
#define ENTER(...) \
  do { \
    int ordered_ = fake_enter(__func__, " " __VA_ARGS__); \
    if (ordered_) return ordered_; \
  } while (0)
#endif
