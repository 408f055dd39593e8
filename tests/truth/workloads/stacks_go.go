// Goroutines block their threads in system calls at the ends of known call trees. A static binary:
// no libc, so no restartable sequences.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	pause  = 12 * time.Millisecond
	rounds = 125
)

// accounts is what the kernel says of this thread: nanoseconds on a CPU, and in run queues.
func accounts() (cpu, delay int64) {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err == nil {
		_, err = fmt.Sscan(string(text), &cpu, &delay)
	}
	if err != nil {
		panic(err)
	}
	return
}

//go:noinline
func leaf() {
	t := syscall.NsecToTimespec(int64(pause))
	syscall.Nanosleep(&t, nil)
}

//go:noinline
func dig(depth int) int {
	if depth > 1 {
		return dig(depth-1) + 1
	}
	leaf()
	return 1
}

//go:noinline
func outermost(depth int) {
	dig(depth)
}

func live(depth int) map[string]any {
	runtime.LockOSThread()
	begin, blocked := time.Now().UnixNano(), int64(0)
	for range rounds {
		cpu, delay := accounts()
		before := time.Now()
		outermost(depth)
		elapsed := time.Since(before).Nanoseconds()
		cpuAfter, delayAfter := accounts()
		blocked += elapsed - (cpuAfter - cpu) - (delayAfter - delay)
	}
	functions := append([]string{"main.outermost"},
		strings.Split(strings.Repeat("main.dig ", depth)+"main.leaf", " ")...)
	return map[string]any{
		"kind": "stack", "label": fmt.Sprintf("sleep at depth %d", depth), "thread": "",
		"pid": os.Getpid(), "tid": syscall.Gettid(), "start": begin, "end": time.Now().UnixNano(),
		"states": []string{"sleep"}, "at_least": 1_000_000_000,
		"trees": []map[string]any{{"ns": blocked, "functions": functions}},
	}
}

func main() {
	out, err := os.OpenFile(os.Getenv("TRUTH_CLAIMS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	// Until then the agent may not have read this program's tables.
	for range 100 {
		leaf()
	}
	var all sync.WaitGroup
	claims := make(chan map[string]any, 8)
	for _, depth := range []int{5, 40, 120, 400} {
		all.Add(1)
		go func() {
			defer all.Done()
			claims <- live(depth)
		}()
	}
	all.Wait()
	close(claims)
	for claim := range claims {
		if err := json.NewEncoder(out).Encode(claim); err != nil {
			panic(err)
		}
	}
}
