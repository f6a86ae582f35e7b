// An agent without a model: it lists its tools, calls wordCount once for each
// text on the command line, and then deals with wakes, calling the tool for each
// wake's message. What happens is printed as one JSON object a line.
//
//   node dist/src/agent.js --tenant acme --agent writer --chat chat1 "some text"

import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { connect, headers, type Msg, type NatsConnection } from "@nats-io/transport-node";
import { pack, request, respondError, send, subject, ToolbusError, unpack } from "./protocol.js";
import type { CallReply, CallRequest, Caller, Json, ToolDefinition } from "./protocol.js";

const lostAfterMs = 5000; // without a beat, which a worker sends every second

interface Wake {
  wakeId: string;
  mode: "chat" | "stateless";
  message: string;
  chatId?: string;
  source: { kind: string; id: string; tool?: string };
  attempt: number;
}

class Agent {
  private readonly who: Caller;
  private readonly heard = new Map<string, (progress: Json | undefined) => void>(); // by call id

  constructor(private readonly nc: NatsConnection, tenant: string, agent: string) {
    this.who = { family: "agent", tenant, agent };
    // One subscription hears the beats and progress of all calls.
    nc.subscribe(this.own("progress", "*"), {
      callback: (_, m) => this.heard.get(m.subject.split(".").at(-1) ?? "")?.(m.json<{ progress?: Json }>().progress),
    });
  }

  private own(...tokens: string[]): string {
    return subject("agent", this.who.tenant, this.who.agent, ...tokens);
  }

  /** tools are what a model would be shown. */
  async tools(): Promise<ToolDefinition[]> {
    return (await request<{ tools: ToolDefinition[] }>(this.nc, this.own("tools"), {})).tools;
  }

  /**
   * call calls a tool. success false is for the model to read; an error means
   * that the tool could not be called.
   */
  async call(tool: string, args: Json, chat: string | undefined, timeoutMs = 60_000, progress: (p: Json) => void = () => undefined): Promise<CallReply> {
    const callId = randomUUID();
    const req: CallRequest = { callId, arguments: args, timeoutMs, ...(chat !== undefined && { chatId: chat }) };
    const h = headers();
    h.set("Toolbus-Beats", "1");
    h.set("Toolbus-Call-Id", callId);
    const packed = await pack(this.nc, this.who, req, h);
    const lost = new Promise<never>((_, reject) => {
      const give = (): void => reject(new ToolbusError("worker_lost", `the worker that ran ${tool} has not been heard of for ${lostAfterMs} ms`));
      let timer = setTimeout(give, lostAfterMs);
      this.heard.set(callId, (p) => {
        clearTimeout(timer);
        if (this.heard.has(callId)) timer = setTimeout(give, lostAfterMs);
        if (p !== undefined) progress(p);
      });
    });
    lost.catch(() => undefined); // nobody may be waiting any more
    try {
      // The worker ends the call after timeoutMs; its answer needs a moment more.
      const reply = await Promise.race([lost, send(this.nc, this.own("call", tool), packed.body, { headers: packed.headers, timeoutMs: timeoutMs + 1000 })]);
      return await unpack<CallReply>(this.nc, this.who, reply);
    } catch (e) {
      if (e instanceof ToolbusError && e.code === "timeout") this.nc.publish(this.own("cancel", callId));
      throw e;
    } finally {
      const hear = this.heard.get(callId);
      this.heard.delete(callId);
      hear?.(undefined); // stops the timer
    }
  }

  /**
   * wakes handles each wake once. A wake comes as a request, and the reply is the
   * acceptance: until then it stays in the agent's mailbox, and comes again.
   */
  async wakes(handle: (w: Wake) => Promise<void>, accepted: () => void): Promise<void> {
    const known = new Map<string, Promise<void>>(); // by wake id: delivery is at least once
    // Replicas of the agent share the queue group.
    this.nc.subscribe(this.own("wake"), {
      queue: this.who.agent,
      callback: (err, m) => {
        if (!err) void this.wake(m, known, handle, accepted).catch((e: unknown) => console.error("not a wake:", e));
      },
    });
    const status = this.nc.status(); // from before the flush: it may fail with the connection
    await this.nc.flush().catch(() => undefined);
    this.ready();
    for await (const s of status) {
      if (s.type === "reconnect") this.ready();
    }
  }

  /** ready asks for what waited while nobody listened: subscribe first. */
  private ready(): void {
    this.nc.publish(this.own("ready"));
  }

  private async wake(m: Msg, known: Map<string, Promise<void>>, handle: (w: Wake) => Promise<void>, accepted: () => void): Promise<void> {
    const w = m.json<Wake>();
    const again = known.has(w.wakeId);
    const handled = known.get(w.wakeId) ?? handle(w);
    known.set(w.wakeId, handled);
    // Say that it is being handled, lest silence counts as no.
    const atWork = (): boolean => m.respond(JSON.stringify({ inProgress: true }));
    atWork();
    const timer = setInterval(atWork, 1000);
    try {
      await handled;
      m.respond(JSON.stringify({ accepted: true }));
      if (!again) accepted();
    } catch (e) {
      console.error((e as Error).message);
      known.delete(w.wakeId); // it is new when it comes again
      // Busy may be said without end. Anything else is a failure: the wake comes
      // after growing pauses, and is given up at last.
      if (e instanceof ToolbusError && ["unavailable", "overloaded"].includes(e.code)) {
        m.respond(JSON.stringify({ accepted: false, retryAfter: "1s" }));
      } else {
        respondError(m, e instanceof ToolbusError ? e : new ToolbusError("internal", (e as Error).message));
      }
    } finally {
      clearInterval(timer);
    }
    for (const oldest of known.keys()) {
      if (known.size <= 1000) break;
      known.delete(oldest);
    }
  }
}

const print = (event: unknown): void => console.log(JSON.stringify(event));

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    server: { type: "string", default: "nats://127.0.0.1:4222" },
    tenant: { type: "string", default: "acme" },
    agent: { type: "string", default: "writer" },
    chat: { type: "string", default: "chat1" },
    wakes: { type: "string", default: "Infinity" }, // end after so many
  },
});
const nc = await connect({ servers: values.server.split(","), name: "typescript agent", maxReconnectAttempts: -1 });
const agent = new Agent(nc, values.tenant, values.agent);
print({ tools: (await agent.tools()).map((t) => t.name) });
for (const text of positionals) {
  print({ reply: await agent.call("wordCount", { text }, values.chat, 60_000, (progress) => print({ progress })) });
}
let left = Number(values.wakes);
if (left > 0) {
  const done = new Promise<void>((resolve, reject) => {
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => resolve());
    agent.wakes(
      async (wake) => {
        const { content } = await agent.call("wordCount", { text: wake.message }, wake.chatId);
        print({ wake, content });
      },
      () => {
        if (--left === 0) resolve();
      },
    ).catch(reject);
  });
  print({ ready: true });
  await done;
}
await nc.drain(); // the last replies go out
