// A worker that hosts the tool wordCount: it answers calls, checks the agent's
// grant and the arguments, keeps a total in the chat's ToolState, shows that it
// lives while it runs, and can be cancelled.
//
//   node dist/src/worker.js --server nats://127.0.0.1:4222

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { connect, type Msg, type NatsConnection } from "@nats-io/transport-node";
import { isChat, isInbox, isName, pack, request, respondError, subject, ToolbusError, unpack } from "./protocol.js";
import type { CallReply, CallRequest, Caller, FieldFault, Json, ToolDefinition } from "./protocol.js";

const tool: ToolDefinition = {
  name: "wordCount",
  description: "Counts the words of a text, and of all texts counted in this chat.",
  inputSchema: {
    type: "object",
    properties: {
      text: { type: "string", description: "the text" },
      pauseMs: { type: "integer", minimum: 0, maximum: 1000, description: "rest after each word, to watch progress" },
    },
    required: ["text"],
    additionalProperties: false,
  },
  version: "1.0.0",
  timeoutMs: 30_000,
};

interface Arguments {
  text: string;
  pauseMs: number;
}

/** check names every wrong field, so that the model can correct itself. */
function check(v: Json): Arguments {
  const faults: FieldFault[] = [];
  if (typeof v !== "object" || v === null || Array.isArray(v)) {
    throw new ToolbusError("invalid_arguments", "arguments: must be an object", { fields: [{ field: "arguments", message: "must be an object" }] });
  }
  const { text, pauseMs = 0, ...unknown } = v;
  if (typeof text !== "string") faults.push({ field: "text", message: text === undefined ? "is required" : "must be a string" });
  if (typeof pauseMs !== "number" || !Number.isInteger(pauseMs) || pauseMs < 0 || pauseMs > 1000) faults.push({ field: "pauseMs", message: "must be 0 to 1000" });
  for (const field of Object.keys(unknown)) faults.push({ field, message: "is unknown; text and pauseMs are allowed" });
  if (faults.length > 0) {
    throw new ToolbusError("invalid_arguments", faults.map((f) => `${f.field}: ${f.message}`).join("; "), { fields: faults });
  }
  return { text: text as string, pauseMs: pauseMs as number };
}

/** wordCount is the tool itself. */
async function wordCount(nc: NatsConnection, who: Caller, chat: string | undefined, args: Arguments, signal: AbortSignal, progress: (p: Json) => void): Promise<{ content: string; data: Json }> {
  const words = args.text.split(/\s+/u).filter((w) => w !== "");
  if (args.pauseMs > 0) {
    for (const i of words.keys()) {
      await sleep(args.pauseMs, undefined, { signal });
      progress({ counted: i + 1, of: words.length });
    }
  }
  signal.throwIfAborted();
  if (chat === undefined) return { content: `${words.length} words`, data: { words: words.length } };
  // Calls of one chat run in parallel: an atomic increment, never read and write.
  // The opId makes a retry of this request count once.
  const { value: total } = await request<{ value: number }>(nc, subject("toolstate", who.tenant, "increment"),
    { chatId: chat, namespace: tool.name, key: "total", by: words.length, opId: randomUUID() });
  return { content: `${words.length} words, ${total} in this chat`, data: { words: words.length, total } };
}

/** Grants knows which agents may call the tool: what the registry said within the last five seconds. */
class Grants {
  private readonly known = new Map<string, { tools: Record<string, unknown>; at: number }>();

  constructor(private readonly nc: NatsConnection) {
    const changes = nc.subscribe(subject("changes", "agent", ">"));
    void (async () => {
      for await (const m of changes) {
        const [tenant, agent] = m.subject.split(".").slice(4);
        if (agent === undefined) this.known.clear(); // the tenant's own settings
        else this.known.delete(`${tenant}.${agent}`);
      }
    })();
  }

  /** forget is for a reconnect: changes may have been missed. */
  forget(): void {
    this.known.clear();
  }

  async check(who: Caller): Promise<void> {
    const key = `${who.tenant}.${who.agent}`;
    let entry = this.known.get(key);
    if (!entry || !(tool.name in entry.tools) || Date.now() - entry.at > 5000) {
      // An unknown agent is the registry's not_found, which the caller gets.
      const { config } = await request<{ config: { tools?: Record<string, unknown> } }>(this.nc, subject("registry", who.tenant, "get"), { agentId: who.agent });
      entry = { tools: config.tools ?? {}, at: Date.now() };
      this.known.set(key, entry);
    }
    if (!(tool.name in entry.tools)) throw new ToolbusError("not_allowed", `agent "${who.agent}" has no tool "${tool.name}"`);
  }
}

class Worker {
  private readonly id = `typescript-${randomUUID()}`;
  private readonly grants: Grants;
  private readonly running = new Map<string, Set<AbortController>>(); // by tenant, agent and call id
  private readonly calls = new Set<Promise<void>>();

  constructor(private readonly nc: NatsConnection) {
    this.grants = new Grants(nc);
  }

  async run(stopped: AbortSignal): Promise<void> {
    // One worker of the queue group takes each call: from agents, and from other tools.
    const subscriptions = ["agent", "worker"].map((family) => this.nc.subscribe(subject(family, "*", "*", "call", tool.name), {
      queue: tool.name,
      callback: (err, m) => {
        if (err || !isInbox(m.reply)) return;
        const call = this.serve(m).finally(() => this.calls.delete(call));
        this.calls.add(call);
      },
    }));
    // No queue group here: any worker may be running the call.
    this.nc.subscribe(subject("agent", "*", "*", "cancel", "*"), {
      callback: (_, m) => {
        const [tenant, agent, , id] = m.subject.split(".").slice(3);
        for (const c of this.running.get(`${tenant}.${agent}.${id}`) ?? []) c.abort(new ToolbusError("cancelled", "the call was cancelled"));
      },
    });
    await this.nc.flush();
    void this.watchReconnects();
    await this.announceUntil(stopped);
    // Leave the catalogue, take no more calls, answer those that run.
    await this.announce([]).catch(() => undefined);
    await Promise.all(subscriptions.map((s) => s.drain()));
    await Promise.all(this.calls);
  }

  private async watchReconnects(): Promise<void> {
    for await (const s of this.nc.status()) {
      if (s.type === "reconnect") {
        this.grants.forget();
        this.announceSoon();
      }
    }
  }

  private announceSoon: () => void = () => undefined;

  /** announceUntil keeps the offer in the catalogue, which forgets who falls silent. */
  private async announceUntil(stopped: AbortSignal): Promise<void> {
    let told = false;
    while (!stopped.aborted) {
      let wait = 500;
      try {
        wait = Math.max((await this.announce([tool])).ttlMs / 3, 100);
        if (!told) console.log(JSON.stringify({ ready: true, worker: this.id }));
        told = true;
      } catch (e) {
        console.error("not announced yet:", (e as Error).message);
      }
      const early = new AbortController();
      this.announceSoon = () => early.abort();
      await sleep(wait, undefined, { signal: AbortSignal.any([early.signal, stopped]) }).catch(() => undefined);
    }
  }

  private announce(tools: ToolDefinition[]): Promise<{ ttlMs: number }> {
    return request(this.nc, subject("catalogue", "announce"), { workerId: this.id, tools }, { timeoutMs: 5000 });
  }

  private async serve(m: Msg): Promise<void> {
    try {
      const [tenant, agent] = m.subject.split(".").slice(3);
      if (!isName(tenant) || tenant.startsWith("_") || !isName(agent)) throw new ToolbusError("invalid_request", `bad subject ${m.subject}`);
      const who: Caller = { family: "worker", tenant, agent };
      const reply = await this.call(who, m);
      const { body, headers } = await pack(this.nc, who, reply);
      m.respond(body, { headers });
    } catch (e) {
      respondError(m, e instanceof ToolbusError ? e : new ToolbusError("internal", `${tool.name} failed unexpectedly`));
      if (!(e instanceof ToolbusError)) console.error(e);
    }
  }

  private async call(who: Caller, m: Msg): Promise<CallReply> {
    const start = performance.now();
    const beats = new Beats(this.nc, who, m.headers?.get("Toolbus-Beats") === "1");
    const early = m.headers?.get("Toolbus-Call-Id");
    try {
      if (isName(early)) beats.start(early); // fetching a large body takes a while
      const req = await unpack<CallRequest>(this.nc, who, m);
      const { callId = randomUUID(), chatId, timeoutMs = tool.timeoutMs ?? 30_000 } = req;
      if (!isName(callId)) throw fieldFault("callId", "must match [A-Za-z0-9_-]{1,64}");
      if (chatId !== undefined && !isChat(chatId)) throw fieldFault("chatId", "must be 1 to 256 bytes without control characters");
      if (typeof timeoutMs !== "number" || timeoutMs < 0) throw fieldFault("timeoutMs", "must be a positive number");
      // Taking it and then running twice would break a promise.
      if (req.idempotencyKey) throw fieldFault("idempotencyKey", "is not supported by this worker");
      beats.start(callId);

      const abort = new AbortController();
      const key = `${who.tenant}.${who.agent}.${callId}`;
      const calls = this.running.get(key) ?? new Set();
      this.running.set(key, calls.add(abort));
      const limit = Math.min(timeoutMs || Infinity, tool.timeoutMs ?? 30_000);
      const timer = setTimeout(() => abort.abort(new ToolbusError("timeout", `${tool.name} did not finish within ${limit} ms`)), limit);
      try {
        await this.grants.check(who);
        const args = check(req.arguments ?? {});
        const result = await wordCount(this.nc, who, chatId, args, abort.signal, (p) => beats.progress(p));
        return { callId, success: true, ...result, durationMs: Math.round(performance.now() - start) };
      } catch (e) {
        throw abort.signal.aborted ? abort.signal.reason : e;
      } finally {
        clearTimeout(timer);
        calls.delete(abort);
        if (calls.size === 0) this.running.delete(key);
      }
    } finally {
      beats.stop();
    }
  }
}

const fieldFault = (field: string, message: string): ToolbusError => new ToolbusError("invalid_request", `${field}: ${message}`, { fields: [{ field, message }] });

/** Beats show a caller who asked for them that the call lives: at once and every second. */
class Beats {
  private to: string | undefined;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly nc: NatsConnection, private readonly who: Caller, private readonly wanted: boolean) {}

  start(callId: string): void {
    this.stop();
    this.to = subject("agent", this.who.tenant, this.who.agent, "progress", callId);
    if (!this.wanted) return;
    const to = this.to;
    const beat = (): void => this.nc.publish(to, JSON.stringify({ beat: true }));
    beat();
    this.timer = setInterval(beat, 1000);
  }

  /** progress tells the caller how far the tool is. */
  progress(progress: Json): void {
    if (this.wanted && this.to) this.nc.publish(this.to, JSON.stringify({ progress }));
  }

  stop(): void {
    clearInterval(this.timer);
  }
}

const { values } = parseArgs({ options: { server: { type: "string", default: "nats://127.0.0.1:4222" } } });
const nc = await connect({ servers: values.server.split(","), name: "typescript worker", maxReconnectAttempts: -1 });
const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop.abort());
await new Worker(nc).run(stop.signal);
await nc.drain();
