package natstest

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between clients and a server, to cut their connections: what is
// under way at that moment, requests and replies, is lost.
type Proxy struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup

	mu    sync.Mutex
	pairs map[net.Conn]net.Conn // clients' connections and their servers'
	down  bool
}

// StartProxy starts a proxy for one server's URL. It ends with the test.
func StartProxy(t testing.TB, url string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: strings.TrimPrefix(url, "nats://"), ln: ln, pairs: map[net.Conn]net.Conn{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.down = true
		p.mu.Unlock()
		_ = ln.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// URL is where clients connect.
func (p *Proxy) URL() string { return "nats://" + p.ln.Addr().String() }

// Cut closes every connection and returns how many there were. Clients may
// connect again at once.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.pairs)
	for client, server := range p.pairs {
		_ = client.Close()
		_ = server.Close()
	}
	clear(p.pairs)
	return n
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close() // the server is down: so are we
			continue
		}
		p.mu.Lock()
		if p.down {
			_ = client.Close()
			_ = server.Close()
			p.mu.Unlock()
			return
		}
		p.pairs[client] = server
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(client, client, server) })
		p.wg.Go(func() { p.pump(client, server, client) })
	}
}

// pump copies one direction; its end is the end of both.
func (p *Proxy) pump(client, from, to net.Conn) {
	_, _ = io.Copy(to, from) // however it ended
	_ = from.Close()
	_ = to.Close()
	p.mu.Lock()
	delete(p.pairs, client)
	p.mu.Unlock()
}
