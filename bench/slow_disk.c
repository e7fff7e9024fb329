/* Every sync takes a little longer: preloaded into whatever is measured, ours and the yardstick. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int slowed(const char *name, int descriptor) {
    const char *wanted = getenv("BENCH_SYNC_US");
    long microseconds = wanted ? atol(wanted) : 0;
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    nanosleep(&pause, NULL);
    return sync(descriptor);
}

int fsync(int descriptor) { return slowed("fsync", descriptor); }
int fdatasync(int descriptor) { return slowed("fdatasync", descriptor); }
