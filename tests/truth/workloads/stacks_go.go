// Goroutines block their threads in system calls at the ends of known call trees. A static binary:
// no libc, so no restartable sequences. (For a sync.Mutex a goroutine waits without a thread.)
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
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

// held is a lock as the kernel knows it: 1 if somebody has it.
var held uint32

const futexWait, futexWake = 0, 1

//go:noinline
func locks() {
	for atomic.LoadUint32(&held) == 1 {
		syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&held)), futexWait, 1, 0, 0, 0)
	}
}

// hold has the lock for a while, as often as somebody wants it.
func hold(wanted <-chan bool) {
	for range wanted {
		time.Sleep(pause)
		atomic.StoreUint32(&held, 0)
		syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&held)), futexWake, 1, 0, 0, 0)
	}
}

//go:noinline
func dig(depth int, wait func()) int {
	if depth > 1 {
		return dig(depth-1, wait) + 1
	}
	wait()
	return 1
}

//go:noinline
func outermost(depth int, wait func()) {
	dig(depth, wait)
}

func sleeps(depth int) map[string]any {
	return live(fmt.Sprintf("sleep at depth %d", depth), "sleep", "leaf", depth, leaf, func() {})
}

func waits(depth int) map[string]any {
	wanted := make(chan bool, 1)
	defer close(wanted)
	go hold(wanted)
	return live("lock", "lock_wait", "locks", depth, locks, func() {
		atomic.StoreUint32(&held, 1)
		wanted <- true
	})
}

func live(label, state, name string, depth int, wait, prepare func()) map[string]any {
	runtime.LockOSThread()
	begin, blocked := time.Now().UnixNano(), int64(0)
	for range rounds {
		prepare()
		cpu, delay := accounts()
		before := time.Now()
		outermost(depth, wait)
		elapsed := time.Since(before).Nanoseconds()
		cpuAfter, delayAfter := accounts()
		blocked += elapsed - (cpuAfter - cpu) - (delayAfter - delay)
	}
	functions := append([]string{"main.outermost"},
		strings.Split(strings.Repeat("main.dig ", depth)+"main."+name, " ")...)
	return map[string]any{
		"kind": "stack", "label": label, "thread": "",
		"pid": os.Getpid(), "tid": syscall.Gettid(), "start": begin, "end": time.Now().UnixNano(),
		"states": []string{state}, "at_least": 1_000_000_000,
		"trees": []map[string]any{{"ns": blocked, "functions": functions}},
	}
}

func main() {
	out, err := os.OpenFile(os.Getenv("TRUTH_CLAIMS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	// A goroutine that comes back from a system call shall not have to wait for a processor: its thread
	// would do so on a futex.
	runtime.GOMAXPROCS(16)
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
			claims <- sleeps(depth)
		}()
	}
	all.Add(1)
	go func() {
		defer all.Done()
		claims <- waits(10)
	}()
	all.Wait()
	close(claims)
	for claim := range claims {
		if err := json.NewEncoder(out).Encode(claim); err != nil {
			panic(err)
		}
	}
}
