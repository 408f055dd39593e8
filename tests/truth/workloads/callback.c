/* Functions between two of Python's, for stacks.py. Compiled without frame pointers. */

#define HERE __asm__ volatile("") /* else a call at the end would be a jump */

__attribute__((noinline)) void inner_call(void (*back)(void))
{
	back();
	HERE;
}

__attribute__((noinline)) void middle_call(void (*back)(void))
{
	inner_call(back);
	HERE;
}

void outer_call(void (*back)(void))
{
	middle_call(back);
	HERE;
}
