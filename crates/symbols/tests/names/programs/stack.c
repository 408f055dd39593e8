// Prints the return addresses of its own stack, innermost first, and an address in code without a
// file, which it describes in a perf map. Then waits.
#define _GNU_SOURCE
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile int keep; // So that calls are not the last thing that their function does.

static inline __attribute__((always_inline)) void inlined(void)
{
	void *frames[64];
	int count = backtrace(frames, 64); // line 18
	for (int i = 0; i < count; i++)
		printf("%lx ", (unsigned long)frames[i]);
	printf("\n");
	keep++;
}

NOINLINE static void innermost(void)
{
	inlined(); // line 26
	keep++;
}

NOINLINE static void middle(void)
{
	innermost(); // line 32
	keep++;
}

NOINLINE static void *jit(void)
{
	char path[64];
	void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", (int)getpid());
	FILE *map = fopen(path, "w");
	if (!map)
		return NULL;
	fprintf(map, "%lx 40 Script:compiled /app/index.js:7\n", (unsigned long)code);
	fclose(map);
	return code;
}

int main(void)
{
	middle(); // line 51
	printf("%lx\n", (unsigned long)jit());
	fflush(stdout);
	return getchar() == EOF;
}
