/* The memory of another process, written as a NIC writes it. */
#ifndef VERBS_PLACE_H
#define VERBS_PLACE_H
#include <sys/types.h>
#include <sys/uio.h>

/* Parts of this process to one place of process `pid`.  Returns the bytes that were placed; -1 with errno. */
ssize_t verbs_place(pid_t pid, const struct iovec *parts, int count, const struct iovec *there);
#endif
