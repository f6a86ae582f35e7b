//go:build faults

package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// The same on a cluster of three, with three copies of everything, when the
// leader of the tenant's stream is killed as well, or steps down.
func TestFilesAreLinearizableOnACluster(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	nc := c.Connect()
	fleet := startFiles(t, nc, c.URL(), 3, "--replicas", "3")
	stream := "OBJ_" + subject.FilesBucket("acme")
	object := func(path, content string) { awaitNatsObject(t, nc, "acme", path, content) }
	playLinear(t, nc, linearRounds, 6, 40, object, func(round int) func() {
		time.Sleep(rand.N(300 * time.Millisecond)) // a random point of the round
		leader := c.Leader(stream)
		victim := round % 3
		if round%3 == 0 {
			c.StepDown(stream)
			return func() {}
		}
		leader.Kill()
		if round%3 == 1 {
			fleet.kill(victim)
		}
		return func() {
			leader.Start()
			c.WaitCurrent(stream)
			if round%3 == 1 {
				fleet.start(victim)
			}
			fleet.await(3)
		}
	})
}
