// Prints the return addresses of its own stack, innermost first. Then waits.
package main

import (
	"fmt"
	"os"
	"runtime"
)

type cart[T any] struct{ items []T }

//go:noinline
func (c *cart[T]) add(item T) {
	pcs := make([]uintptr, 16)
	// Not those of runtime.Callers itself.
	for _, pc := range pcs[:runtime.Callers(1, pcs)] {
		fmt.Printf("%x ", pc)
	}
	fmt.Println()
	c.items = append(c.items, item)
}

//go:noinline
func work() int {
	c := &cart[int]{}
	func() { c.add(1) }()
	return len(c.items)
}

func main() {
	fmt.Println(work())
	os.Stdin.Read(make([]byte, 1))
}
