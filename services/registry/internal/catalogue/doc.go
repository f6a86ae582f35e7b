// Package catalogue knows which tools exist: what every live worker announced,
// in the bucket toolbus_tools under <tool>.<workerId>. An offer expires unless
// its worker repeats it, so a worker that dies is forgotten within the
// lifetime; one that leaves says so.
//
// The bucket's stream republishes the headers of every change to
// changes.tool.…, expiries included; every replica drops its view then.
package catalogue
