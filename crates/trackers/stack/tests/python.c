/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The walker of Python frames as user code.
 */
#define UNDERSPAN_USER
#include "../python.bpf.h"

/*
 * Walks the frames of a thread in recorded memory. `tstate`, in: where its thread state was the last
 * time, or 0; out: where it is. With `forget`, nothing is known from walks before. Returns
 * enum stack_end; `frames` holds PYTHON_FRAMES.
 */
int underspan_test_walk_python(user_read read, void *recording, const struct python_layout *layout,
			       __u64 pthread, __u64 *tstate, int forget, struct python_frame *frames,
			       __u32 *count)
{
	static _Thread_local struct stack_scratch s;
	enum stack_end end;

	if (forget)
		__builtin_memset(&s, 0, sizeof(s));
	user.read = read;
	user.recording = recording;
	s.used = 0;
	s.e.python_frames = 0;
	end = walk_python_frames(&s, layout, pthread, *tstate);
	*tstate = s.python.found;
	*count = s.e.python_frames;
	__builtin_memcpy(frames, s.words, *count * sizeof(*frames));
	return end;
}
