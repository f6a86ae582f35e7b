//go:build unix

package natstest

import "syscall"

// Pause freezes the server (SIGSTOP): its connections stay open, and what is sent
// to it waits. A cluster elects another leader after some seconds; the frozen one
// does not know it when it is resumed.
func (m *Member) Pause() { m.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (m *Member) Resume() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatalf("nats-server %s: %v: %v", m.spec.Name, s, err)
	}
}
