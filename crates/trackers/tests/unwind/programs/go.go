// The same as trees.c, by Go's compiler. The system call is made on the goroutine's stack. C is linked
// in, so that threads are started by the C library.
package main

import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sort"
	"syscall"
	"time"
)

var sink int

//go:noinline
func tellAndSleep() {
	list := make([]uintptr, 512)
	count := runtime.Callers(1, list)
	line := fmt.Sprint(syscall.Gettid())
	for _, address := range list[:count] {
		line += fmt.Sprintf(" %x", address)
	}
	fmt.Println(line)
	for range 100 {
		pause := syscall.Timespec{Nsec: 2000000}
		syscall.Nanosleep(&pause, nil)
	}
}

type node interface{ visit(depth int) int }
type left struct{ numbers [40]int }
type right struct{ number int }

//go:noinline
func (l *left) visit(depth int) int {
	return l.numbers[depth%40] + deep(depth)
}

//go:noinline
func (r *right) visit(depth int) int {
	return r.number + deep(depth)
}

//go:noinline
func deep(depth int) int {
	if depth == 0 {
		told := false
		numbers := []int{3, 1, 2}
		sort.Slice(numbers, func(i, j int) bool {
			if !told {
				told = true
				tellAndSleep()
			}
			return numbers[i] < numbers[j]
		})
		return numbers[0]
	}
	var next node = &right{depth}
	if depth%2 == 0 {
		next = &left{}
	}
	defer func() { sink++ }()
	return next.visit(depth-1) + 1
}

func main() {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	done := make(chan int)
	go func() {
		runtime.LockOSThread()
		done <- deep(25)
	}()
	<-done
	fmt.Println("done")
	time.Sleep(time.Hour) // A thread that exits may wait, and never goes back to tell its stack.
}
