package area

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// cut is a connection that dies as a crashed process does: at a chosen write to
// the server's storage nothing that comes later gets out. It reads the protocol
// on the wire, so no write can be missed, whichever code makes it.
type cut struct {
	net.Conn

	mu      sync.Mutex
	after   int    // writes let through; < 0 for all
	writes  int    // seen
	out     []byte // not yet a whole frame
	awaited []byte // reply subject of the last write let through
	in      []byte
	done    chan struct{} // closed when that write was acknowledged

	// Instead of dying the connection stands still before a write, until it is
	// released.
	held    chan struct{} // closed then; nil to die
	release chan struct{}
}

// cutter dials cuts, once: what crashed does not come back.
type cutter struct {
	mu   sync.Mutex
	conn *cut
	n    int
}

func (d *cutter) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		return nil, errors.New("crashed")
	}
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.conn = &cut{Conn: c, after: -1, done: make(chan struct{})}
	return d.conn, nil
}

func (d *cutter) option() nats.Option { return nats.SetCustomDialer(d) }

// arm makes the connection die after n further writes.
func (c *cut) arm(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after, c.writes = n, 0
}

// hold makes the connection stand still before its write n+1.
func (c *cut) hold(n int) (held <-chan struct{}, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.release = make(chan struct{}), make(chan struct{})
	c.after, c.writes = n, 0
	return c.held, sync.OnceFunc(func() { close(c.release) })
}

func (c *cut) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

func (c *cut) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, p...)
	for {
		frame, subject, reply, err := nextFrame(c.out)
		if err != nil {
			return 0, err
		}
		if frame == 0 {
			return len(p), nil
		}
		stores := storing(subject)
		if c.held != nil && stores && c.after >= 0 && c.writes >= c.after {
			c.after = -1
			close(c.held)
			c.mu.Unlock()
			<-c.release
			c.mu.Lock()
		}
		if c.held == nil && c.after >= 0 && c.writes >= c.after {
			c.out = c.out[frame:] // dead
			continue
		}
		if stores {
			if c.writes++; c.writes == c.after {
				c.awaited = []byte(" " + reply + " ")
			}
		}
		if _, err := c.Conn.Write(c.out[:frame]); err != nil {
			return 0, err
		}
		c.out = c.out[frame:]
	}
}

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in = append(c.in, p[:n]...); c.awaited != nil && bytes.Contains(c.in, c.awaited) {
		c.awaited = nil
		close(c.done)
	}
	if len(c.in) > 256 {
		c.in = c.in[len(c.in)-256:]
	}
	return n, err
}

// nextFrame is the length of the first whole frame that a client sent, or 0,
// with the subject and reply of a publish.
func nextFrame(b []byte) (n int, subject, reply string, err error) {
	line, _, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok {
		return 0, "", "", nil
	}
	n = len(line) + 2
	f := strings.Fields(string(line))
	if len(f) < 3 || f[0] != "PUB" && f[0] != "HPUB" {
		return n, "", "", nil
	}
	size, err := strconv.Atoi(f[len(f)-1])
	if err != nil {
		return 0, "", "", fmt.Errorf("unreadable frame %q", line)
	}
	if n += size + 2; len(b) < n {
		return 0, "", "", nil
	}
	if plain := map[string]int{"PUB": 3, "HPUB": 4}[f[0]]; len(f) > plain {
		reply = f[2]
	}
	return n, f[1], reply, nil
}

// storing tells whether a publish changes what the server stores.
func storing(subject string) bool {
	for _, p := range []string{"$O.", "toolbus.v1.files.", "$JS.API.STREAM.MSG.DELETE.", "$JS.API.STREAM.PURGE.", "$JS.API.STREAM.CREATE.", "$JS.API.STREAM.UPDATE."} {
		if strings.HasPrefix(subject, p) {
			return true
		}
	}
	return false
}
