/* What the fake libraries share: a text file of "key=value" lines, named by an environment variable.
 *   key=value        the system, or all GPUs           driver=580.95.05   count=8
 *   gpuN.key=value   one GPU                           gpu3.numa=0        gpu5.pcie_width=8
 *   error.FN=CODE    function FN returns CODE          error.init=9       gpu6.error.handle=15
 *   hang.FN=1        function FN never returns         hang.init=1
 *   crash.FN=1       function FN dies of SIGSEGV       crash.init=1 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct { char key[64], value[192]; } settings[1024];
static int nsettings;

static void load_settings(const char *variable)
{
    char line[300];
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "r") : NULL;

    nsettings = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\r\n")] = 0;
        if (!equals || *line == '#' || nsettings == 1024)
            continue;
        *equals = 0;
        snprintf(settings[nsettings].key, sizeof settings[0].key, "%.63s", line);
        snprintf(settings[nsettings].value, sizeof settings[0].value, "%.191s", equals + 1);
        nsettings++;
    }
    if (file)
        fclose(file);
}

static const char *lookup(const char *key)
{
    for (int i = nsettings - 1; i >= 0; i--)
        if (!strcmp(settings[i].key, key))
            return settings[i].value;
    return NULL;
}

static const char *text(int gpu, const char *key, const char *fallback)
{
    char own[96];
    const char *found = NULL;
    if (gpu >= 0) {
        snprintf(own, sizeof own, "gpu%d.%s", gpu, key);
        found = lookup(own);
    }
    if (!found)
        found = lookup(key);
    return found ? found : fallback;
}

static long number(int gpu, const char *key, long fallback)
{
    const char *found = text(gpu, key, NULL);
    return found ? strtol(found, NULL, 0) : fallback;
}

/* The code that function FN shall return, 0 for none; or it does not return. */
static int fault(int gpu, const char *fn)
{
    char key[96];
    snprintf(key, sizeof key, "hang.%s", fn);
    while (number(gpu, key, 0))
        pause();
    snprintf(key, sizeof key, "crash.%s", fn);
    if (number(gpu, key, 0))
        raise(SIGSEGV);
    snprintf(key, sizeof key, "error.%s", fn);
    return (int)number(gpu, key, 0);
}

/* Bytes of a UUID like GPU-fa4e0000-0000-4000-8000-000000000003. */
__attribute__((unused)) static void uuid_text(int gpu, char *out, size_t size)
{
    char fallback[64];
    snprintf(fallback, sizeof fallback, "GPU-fa4e0000-0000-4000-8000-%012x", gpu);
    snprintf(out, size, "%s", text(gpu, "uuid", fallback));
}

__attribute__((unused)) static const unsigned BUS[8] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf}; /* a DGX H100 */
