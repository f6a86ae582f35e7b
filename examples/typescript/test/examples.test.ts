// The worker and the agent as processes, against a real "toolbus up".

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { connect, headers, type NatsConnection } from "@nats-io/transport-node";
import { pack, request, send, subject, ToolbusError, unpack, type CallReply, type Caller } from "../src/protocol.js";
import { Program } from "./processes.js";

const toolbus = process.env["TOOLBUS"] ?? join(import.meta.dirname, "../../../../bin/toolbus");
const script = (name: string): string => join(import.meta.dirname, `../src/${name}.js`);
const writer: Caller = { family: "agent", tenant: "acme", agent: "writer" };

let data: string;
let up: Program;
let worker: Program;
let server: string;
let nc: NatsConnection;

before(async () => {
  data = await mkdtemp(join(tmpdir(), "toolbus-typescript-"));
  up = new Program("toolbus up", toolbus, ["up", "--listen", "127.0.0.1:0", "--data", data]);
  server = (await up.event<{ nats: string }>("nats")).nats;
  nc = await connect({ servers: server, maxReconnectAttempts: -1 });
  worker = new Program("worker", process.execPath, [script("worker"), "--server", server]);
  await worker.event("ready");
  const config = { agents: [{ agentId: "writer", tools: { wordCount: {} } }, { agentId: "other", tools: {} }] };
  const applied = await request<{ warnings: string[] }>(nc, subject("registry", "acme", "apply"), { config });
  assert.deepEqual(applied.warnings, []); // the worker's tool is in the catalogue
});

after(async () => {
  await nc?.close();
  const codes = [await worker?.stop(), await up?.stop()];
  await rm(data, { recursive: true, force: true });
  assert.deepEqual(codes, [0, 0]);
});

/** call calls wordCount without beats. */
async function call(agent: string, body: object): Promise<CallReply> {
  return request<CallReply>(nc, subject("agent", "acme", agent, "call", "wordCount"), body);
}

const withCode = (code: string, ...fields: string[]) => (e: unknown): boolean => {
  assert.ok(e instanceof ToolbusError, String(e));
  assert.equal(e.code, code);
  assert.deepEqual(e.details?.fields?.map((f) => f.field) ?? [], fields);
  return true;
};

test("a call counts, and adds up in the chat", async () => {
  const first = await call("writer", { callId: "a", chatId: "sum", arguments: { text: "one two  three" } });
  assert.deepEqual([first.callId, first.success, first.data], ["a", true, { words: 3, total: 3 }]);
  const calls = Array.from({ length: 20 }, () => call("writer", { chatId: "sum", arguments: { text: "four five" } }));
  await Promise.all(calls);
  const state = await request(nc, subject("toolstate", "acme", "get"), { chatId: "sum", namespace: "wordCount", key: "total" });
  assert.equal((state as { value: number }).value, 43);
});

test("faults are named", async () => {
  await assert.rejects(call("writer", { arguments: {} }), withCode("invalid_arguments", "text"));
  await assert.rejects(call("writer", { arguments: { text: 5, pauseMs: -1, txt: "x" } }), withCode("invalid_arguments", "text", "pauseMs", "txt"));
  await assert.rejects(call("writer", { callId: "a.b", arguments: { text: "x" } }), withCode("invalid_request", "callId"));
  await assert.rejects(call("other", { arguments: { text: "x" } }), withCode("not_allowed"));
  await assert.rejects(call("nobody", { arguments: { text: "x" } }), withCode("not_found"));
  await assert.rejects(request(nc, subject("agent", "acme", "writer", "call", "noSuchTool"), {}), withCode("unavailable"));
});

test("a changed configuration counts at once", async () => {
  const apply = (tools: object) => request(nc, subject("registry", "acme", "apply"), { config: { agentId: "other", tools } });
  await apply({ wordCount: {} });
  assert.equal((await call("other", { arguments: { text: "x" } })).success, true);
  await apply({});
  const deadline = Date.now() + 5000;
  for (;;) {
    const refused = await call("other", { arguments: { text: "x" } }).then(() => false, withCode("not_allowed"));
    if (refused) break;
    assert.ok(Date.now() < deadline, "a revoked grant is still taken");
  }
});

test("beats, progress and cancel", async () => {
  const heard: { beat?: boolean; progress?: { counted: number } }[] = [];
  let counted: () => void = () => undefined;
  const twoCounted = new Promise<void>((resolve) => (counted = resolve));
  const sub = nc.subscribe(subject("agent", "acme", "writer", "progress", "slow"), {
    callback: (_, m) => {
      heard.push(m.json());
      if (heard.at(-1)?.progress?.counted === 2) counted();
    },
  });
  const h = headers();
  h.set("Toolbus-Beats", "1");
  const running = send(nc, subject("agent", "acme", "writer", "call", "wordCount"),
    JSON.stringify({ callId: "slow", arguments: { text: "a ".repeat(1000), pauseMs: 100 } }), { headers: h });
  const ended = assert.rejects(running, withCode("cancelled"));
  await twoCounted;
  const start = Date.now();
  nc.publish(subject("agent", "acme", "writer", "cancel", "slow"));
  await ended;
  assert.ok(Date.now() - start < 1000);
  assert.deepEqual(heard[0], { beat: true });
  sub.unsubscribe();
});

test("a deadline ends the call", async () => {
  await assert.rejects(call("writer", { timeoutMs: 50, arguments: { text: "a b c", pauseMs: 1000 } }), withCode("timeout"));
});

test("an answer reaches inboxes only", async () => {
  const victim = subject("agent", "acme", "other", "call", "wordCount");
  let asked = 0;
  const sub = nc.subscribe(victim, { callback: () => void asked++ });
  nc.publish(subject("agent", "acme", "writer", "call", "wordCount"), JSON.stringify({ arguments: { text: "x" } }), { reply: victim });
  await call("writer", { arguments: { text: "x" } }); // taken after it
  await nc.flush();
  assert.equal(asked, 0);
  sub.unsubscribe();
});

test("a text larger than a message", async () => {
  const words = 400_000;
  const { body, headers: h } = await pack(nc, writer, { callId: "big", arguments: { text: "word ".repeat(words) } });
  assert.equal(body.length, 0);
  const reply = await unpack<CallReply>(nc, writer, await send(nc, subject("agent", "acme", "writer", "call", "wordCount"), body, { headers: h }));
  assert.deepEqual(reply.data, { words });
});

interface WakeEvent {
  wake: { wakeId: string; message: string };
  content: string;
}

test("an agent calls, and is woken by what waited and by what comes", async () => {
  const wake = async (message: string): Promise<string> => {
    const sent = await request<{ wakeId: string }>(nc, subject("scheduler", "acme", "wake"), { agentId: "writer", message, chatId: "woken", opId: message });
    return sent.wakeId;
  };
  const waiting = [await wake("one"), await wake("one two"), await wake("one two three")]; // nobody listens yet
  const agent = new Program("agent", process.execPath, [script("agent"), "--server", server, "--wakes", "4", "--chat", "spoken", "to be or not to be"]);
  assert.deepEqual((await agent.event<{ tools: string[] }>("tools")).tools, ["wordCount"]);
  const { reply } = await agent.event<{ reply: CallReply }>("reply");
  assert.deepEqual(reply.data, { words: 6, total: 6 });
  await agent.event("ready");
  const last = await wake("the last one of them all");
  assert.equal(await agent.end(), 0, agent.output());
  const woken = agent.events.filter((e): e is WakeEvent => typeof e === "object" && e !== null && "wake" in e);
  assert.deepEqual(woken.map((e) => e.wake.wakeId), [...waiting, last]);
  assert.deepEqual(woken.map((e) => e.content), ["1 words, 1 in this chat", "2 words, 3 in this chat", "3 words, 6 in this chat", "6 words, 12 in this chat"]);
  const left = await request<{ wakes: unknown[] }>(nc, subject("scheduler", "acme", "wakes"), { agentId: "writer" });
  assert.deepEqual(left.wakes, []);
});

test("worker and agent go on after a crash of everything else", async () => {
  const agent = new Program("agent", process.execPath, [script("agent"), "--server", server, "--wakes", "1", "--chat", "crash"]);
  await agent.event("ready");
  await up.kill();
  up = new Program("toolbus up", toolbus, ["up", "--listen", new URL(server).host, "--data", data]);
  await up.event("nats");
  const deadline = Date.now() + 15_000;
  for (;;) {
    const reply = await call("writer", { chatId: "crash", arguments: { text: "x" } }).catch((e: unknown) => e);
    if (!(reply instanceof Error)) break;
    assert.ok(Date.now() < deadline, `the worker does not come back: ${reply.message}`);
  }
  await request(nc, subject("scheduler", "acme", "wake"), { agentId: "writer", message: "after the crash", chatId: "crash" });
  assert.equal(await agent.end(), 0, agent.output());
  assert.equal((await agent.event<WakeEvent>("wake")).wake.message, "after the crash");
});
