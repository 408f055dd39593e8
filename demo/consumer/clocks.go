package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lib/pq"
)

// What the consumer knows of itself: how long it waited for the broker, how much of the CPU decoding took,
// and Go's own CPU profile. What Underspan says from outside is compared with it.

// clocked is a connection that counts the time spent in Read.
type clocked struct {
	net.Conn
	reading *atomic.Int64
}

func (c clocked) Read(into []byte) (int, error) {
	start := time.Now()
	n, err := c.Conn.Read(into)
	c.reading.Add(int64(time.Since(start)))
	return n, err
}

type dialer struct{ reading *atomic.Int64 }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialTimeout(network, address, 0)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, timeout)
	return clocked{conn, d.reading}, err
}

// connector opens connections to the topic whose reads are counted.
func connector(reading *atomic.Int64) *pq.Connector {
	made, err := pq.NewConnector(os.Getenv("TOPIC"))
	if err != nil {
		log.Fatal("TOPIC: ", err)
	}
	made.Dialer(dialer{reading})
	return made
}

// profile writes a CPU profile to the file that PROFILE names. Call what it returns at the end.
func profile() func() {
	name := os.Getenv("PROFILE")
	if name == "" {
		return func() {}
	}
	file, err := os.Create(name)
	if err != nil {
		log.Fatal(err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		log.Fatal(err)
	}
	return func() {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			log.Fatal(err)
		}
	}
}

// account is the consumer's last line of output.
type account struct {
	RecordsPerSecond float64 `json:"records_per_second"`
	// Reading is the share of its time that it spent in Read.
	Reading float64 `json:"reading"`
	// Decoding is the share of the CPU time of its process that decoding took.
	Decoding float64 `json:"decoding"`
}

// threadCPU is the CPU time of the calling thread. A profile of signals knows it less well: they come at the
// kernel's ticks.
func threadCPU() time.Duration {
	const clockOfThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var at syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockOfThread, uintptr(unsafe.Pointer(&at)), 0)
	return time.Duration(at.Nano())
}

// cpu is the CPU time of the process, in seconds.
func cpu() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func (a account) print() {
	line, err := json.Marshal(a)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}
