// Package worker hosts tools on the bus. An outsider's worker program is
//
//	func main() { worker.Main(AddTrackingCode, SubmitRelabeling) }
//
// and as many replicas of it may run as there is work. A worker takes tenant
// and agent from a call's subject, asks the registry once for the agent's
// configuration, refuses what it does not grant, checks the arguments, and
// gives the tool its capabilities. Tools see their own settings only.
package worker
