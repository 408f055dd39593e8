// A consumer as there are many: it polls a topic for records, decodes each, and files it. The topic is
// a table of PostgreSQL, which the consumer reads from beginning to end, again and again.
//
//	consumer fill    makes the topic
//	consumer         consumes it until it is told to stop, then says how it went (see clocks.go)
//
// TOPIC is the database; BATCH how many records a poll fetches; PROFILE a file for its CPU profile.
package main

import (
	"compress/flate"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	records = 500
	// How hard it compresses what it files.
	level = 3
)

// An order, as its producer wrote it.
type order struct {
	ID       int64             `json:"id"`
	Customer string            `json:"customer"`
	Lines    []line            `json:"lines"`
	Tags     map[string]string `json:"tags"`
}

type line struct {
	Product  string  `json:"product"`
	Quantity int     `json:"quantity"`
	Price    float64 `json:"price"`
}

type record struct {
	id      int64
	payload []byte
}

type consumer struct {
	fetch  *sql.Stmt
	commit *sql.Stmt
	batch  int
	offset int64
	file   *flate.Writer
	sum    float64
	count  atomic.Int64
	// CPU time, in nanoseconds.
	decoding atomic.Int64
}

// poll commits how far it came and fetches the next records.
func (c *consumer) poll() ([]record, error) {
	if _, err := c.commit.Exec(c.offset); err != nil {
		return nil, err
	}
	rows, err := c.fetch.Query(c.offset, c.batch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []record
	for rows.Next() {
		var next record
		if err := rows.Scan(&next.id, &next.payload); err != nil {
			return nil, err
		}
		found = append(found, next)
	}
	return found, rows.Err()
}

func (c *consumer) decode(record record) (order, error) {
	var decoded order
	err := json.Unmarshal(record.payload, &decoded)
	return decoded, err
}

// archive files a record, compressed.
func (c *consumer) archive(record record, decoded order) error {
	for _, line := range decoded.Lines {
		c.sum += float64(line.Quantity) * line.Price
	}
	_, err := c.file.Write(record.payload)
	return err
}

func (c *consumer) run() {
	// So that its CPU time is one thread's.
	runtime.LockOSThread()
	for {
		found, err := c.poll()
		if err != nil {
			log.Fatal("polling: ", err)
		}
		if len(found) == 0 {
			c.offset = 0
			continue
		}
		for _, record := range found {
			used := threadCPU()
			decoded, err := c.decode(record)
			c.decoding.Add(int64(threadCPU() - used))
			if err != nil {
				log.Fatal("decoding: ", err)
			}
			if err := c.archive(record, decoded); err != nil {
				log.Fatal("filing: ", err)
			}
			c.offset = record.id
			c.count.Add(1)
		}
	}
}

func fill(db *sql.DB) {
	const create = `CREATE UNLOGGED TABLE topic (id bigserial PRIMARY KEY, payload bytea);
		ALTER TABLE topic ALTER payload SET STORAGE EXTERNAL;
		CREATE UNLOGGED TABLE consumed (upto bigint) WITH (fillfactor = 10);
		INSERT INTO consumed VALUES (0)`
	if _, err := db.Exec(create); err != nil {
		log.Fatal("making the topic: ", err)
	}
	random := rand.New(rand.NewSource(1))
	for id := int64(1); id <= records; id++ {
		made := order{ID: id, Customer: fmt.Sprint("customer-", random.Intn(5000)), Tags: map[string]string{}}
		for len(made.Lines) < 300 {
			product := fmt.Sprint("product-", random.Intn(100000))
			made.Lines = append(made.Lines, line{product, 1 + random.Intn(9), float64(random.Intn(9999)) / 100})
		}
		for len(made.Tags) < 10 {
			made.Tags[fmt.Sprint("tag-", random.Intn(1000))] = fmt.Sprint(random.Int63())
		}
		payload, err := json.Marshal(made)
		if err != nil {
			log.Fatal("encoding: ", err)
		}
		if _, err := db.Exec("INSERT INTO topic (payload) VALUES ($1)", payload); err != nil {
			log.Fatal("filling the topic: ", err)
		}
	}
}

func main() {
	log.SetFlags(0)
	var reading atomic.Int64
	db := sql.OpenDB(connector(&reading))
	if len(os.Args) > 1 && os.Args[1] == "fill" {
		fill(db)
		return
	}
	batch, err := strconv.Atoi(os.Getenv("BATCH"))
	if err != nil || batch < 1 {
		log.Fatal("BATCH must be a number of records, at least 1")
	}
	// A broker some way off: it takes a millisecond to answer.
	fetch, err := db.Prepare("SELECT id, payload FROM pg_sleep(0.001), topic WHERE id > $1 ORDER BY id LIMIT $2")
	if err != nil {
		log.Fatal("preparing: ", err)
	}
	commit, err := db.Prepare("UPDATE consumed SET upto = $1")
	if err != nil {
		log.Fatal("preparing: ", err)
	}
	file, err := flate.NewWriter(io.Discard, level)
	if err != nil {
		log.Fatal(err)
	}
	c := &consumer{fetch: fetch, commit: commit, batch: batch, file: file}
	end := profile()
	before, used, start := reading.Load(), cpu(), time.Now()
	go c.run()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	took := time.Since(start)
	used = cpu() - used
	end()
	account{
		RecordsPerSecond: float64(c.count.Load()) / took.Seconds(),
		Reading:          float64(reading.Load()-before) / float64(took),
		Decoding:         time.Duration(c.decoding.Load()).Seconds() / used,
	}.print()
}
