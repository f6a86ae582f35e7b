// Command toolbus is the command line of Toolbus, and with "toolbus up" all of
// it in one process.
package main

import (
	"os"
	_ "time/tzdata" // schedules have time zones, also where the machine has none

	"github.com/toolbus/toolbus/services/toolbus/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.LookupEnv))
}
