// Package agents keeps the configurations of all tenants' agents in the bucket
// toolbus_agents: an agent under <tenant>.<agent>, what a tenant's agents share
// under <tenant>. Values are canonical JSON, so equal configurations are equal
// bytes and are not written again.
//
// A configuration changes in one atomic batch with a compare-and-set per agent:
// all of it or nothing, however many replicas apply at once. The bucket's
// stream republishes the headers of every change to changes.agent.….
package agents
