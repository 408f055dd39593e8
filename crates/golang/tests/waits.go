// A program whose goroutines wait in known ways. It says so on standard output, as Go's own traceback
// sees it, then "ready"; and ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

var (
	never = make(chan int)
	other = make(chan int)
	full  = make(chan int)
	held  sync.Mutex
	reads sync.RWMutex
	cond  = sync.NewCond(&sync.Mutex{})
	group sync.WaitGroup
	sink  uint64
)

func sleeper() { time.Sleep(time.Hour) }

func receiver() { <-never }

func sender() { full <- 1 }

func selecter() {
	select {
	case <-never:
	case other <- 1:
	}
}

func locker() { held.Lock() }

func readLocker() { reads.RLock() }

func conditioner() {
	cond.L.Lock()
	cond.Wait()
}

func grouper() { group.Wait() }

//go:noinline
func deep(n int) int {
	if n == 0 {
		return <-never
	}
	return deep(n-1) + n
}

func diver() { sink += uint64(deep(100)) }

func reader(address string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		panic(err)
	}
	io.ReadAll(conn)
}

func caller(fd int) {
	buffer := make([]byte, 1)
	syscall.Read(fd, buffer)
}

// Sleeps for 30 ms, then receives for 10 ms, again and again.
func alternator(ticks chan int) {
	for {
		time.Sleep(30 * time.Millisecond)
		<-ticks
	}
}

func ticker(ticks chan int) {
	for {
		time.Sleep(40 * time.Millisecond)
		ticks <- 1
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var pipe [2]int
	if err := syscall.Pipe(pipe[:]); err != nil {
		panic(err)
	}
	held.Lock()
	reads.Lock()
	group.Add(1)
	go sleeper()
	go receiver()
	go sender()
	go selecter()
	go locker()
	go readLocker()
	go conditioner()
	go grouper()
	go diver()
	go reader(listener.Addr().String())
	go caller(pipe[0])
	if len(os.Args) > 1 && os.Args[1] == "alternate" {
		ticks := make(chan int)
		go alternator(ticks)
		go ticker(ticks)
	}
	time.Sleep(200 * time.Millisecond)
	dump := make([]byte, 1<<20)
	os.Stdout.Write(dump[:runtime.Stack(dump, true)])
	fmt.Println("\nready")
	io.Copy(io.Discard, os.Stdin)
}
