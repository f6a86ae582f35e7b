package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// sample is the process at one moment.
type sample struct {
	phase      string
	at         time.Duration
	cycles     int
	resident   float64 // bytes of memory that the process holds
	heap       float64 // bytes at which the next garbage collection is due: twice what lived after the last
	goroutines float64
	cpu        float64 // percent of one processor since the sample before
	messages   float64 // in the stream of the documents, markers included
	bytes      float64 // of them
	disk       float64 // bytes of all files
}

// curve prints samples as they come.
type curve struct {
	out  io.Writer
	file *os.File // may be nil
	csv  *csv.Writer
}

func newCurve(out io.Writer, path string) (*curve, error) {
	c := &curve{out: out}
	fmt.Fprintf(out, "%-7s %6s %9s %9s %9s %7s %7s %9s %9s %9s\n",
		"PHASE", "S", "CYCLES", "RSS MiB", "HEAP MiB", "GOROUT.", "CPU %", "MESSAGES", "MiB", "DISK MiB")
	if path == "" {
		return c, nil
	}
	var err error
	if c.file, err = os.Create(path); err != nil {
		return nil, err
	}
	c.csv = csv.NewWriter(c.file)
	return c, c.csv.Write([]string{"phase", "seconds", "cycles", "rss_bytes", "heap_goal_bytes", "goroutines", "cpu_percent", "messages", "message_bytes", "disk_bytes"})
}

func (c *curve) add(s sample) {
	fmt.Fprintf(c.out, "%-7s %6.0f %9d %9.1f %9.1f %7.0f %7.1f %9.0f %9.2f %9.1f\n",
		s.phase, s.at.Seconds(), s.cycles, s.resident/mib, s.heap/mib, s.goroutines, s.cpu, s.messages, s.bytes/mib, s.disk/mib)
	if c.csv == nil {
		return
	}
	record := []string{s.phase, fmt.Sprintf("%.0f", s.at.Seconds()), strconv.Itoa(s.cycles)}
	for _, v := range []float64{s.resident, s.heap, s.goroutines, s.cpu, s.messages, s.bytes, s.disk} {
		record = append(record, strconv.FormatFloat(v, 'f', -1, 64))
	}
	_ = c.csv.Write(record) // close tells
}

func (c *curve) close() error {
	if c.csv == nil {
		return nil
	}
	c.csv.Flush()
	if err := c.csv.Error(); err != nil {
		return err
	}
	return c.file.Close()
}

const mib = 1 << 20

// tolerance is how far a value may end above its start.
type tolerance struct {
	what   string
	unit   float64
	value  func(sample) float64
	factor float64 // of the start
	plus   float64 // beside it, in the value's own unit
}

var tolerances = []tolerance{
	{"resident memory, MiB", mib, func(s sample) float64 { return s.resident }, 1.25, 8 * mib},
	{"heap, MiB", mib, func(s sample) float64 { return s.heap }, 1.25, 4 * mib},
	{"goroutines", 1, func(s sample) float64 { return s.goroutines }, 1.1, 8},
	{"idle CPU, %", 1, func(s sample) float64 { return s.cpu }, 1.5, 1},
	{"messages", 1, func(s sample) float64 { return s.messages }, 1, 0},
	{"bytes of messages", 1, func(s sample) float64 { return s.bytes }, 1, 0},
	{"files, MiB", mib, func(s sample) float64 { return s.disk }, 1.25, 8 * mib},
}

// compare names what ended above its start and prints both to out, if not nil.
func compare(start, end sample, out io.Writer) (faults []string) {
	if out != nil {
		fmt.Fprintf(out, "%-22s %9s %9s %7s %9s\n", "", "START", "END", "RATIO", "ALLOWED")
	}
	for _, t := range tolerances {
		from, to := t.value(start), t.value(end)
		allowed := from*t.factor + t.plus
		if to > allowed {
			faults = append(faults, t.what)
		}
		if out != nil {
			ratio := "–"
			if from > 0 {
				ratio = fmt.Sprintf("%.2f", to/from)
			}
			fmt.Fprintf(out, "%-22s %9.1f %9.1f %7s %9.1f\n", t.what, from/t.unit, to/t.unit, ratio, allowed/t.unit)
		}
	}
	return faults
}
