// What every program on Toolbus needs, on top of a NATS client: names of
// subjects, requests with their errors, and bodies larger than a message. The
// contract is contracts/asyncapi.yaml.

import { createHash, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { headers, NoRespondersError, RequestError, TimeoutError, type Msg, type MsgHdrs, type NatsConnection } from "@nats-io/transport-node";

/** subject puts the tokens of a subject together; none may be free text. */
export const subject = (...tokens: string[]): string => ["toolbus.v1", ...tokens].join(".");

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface FieldFault {
  field: string;
  message: string;
}

export interface ErrorDetails {
  fields?: FieldFault[];
  revision?: number;
  limit?: number;
  actual?: number;
  retryAfter?: string;
}

/** ToolbusError is a request that could not be served. Match its code, never its message. */
export class ToolbusError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly details?: ErrorDetails,
  ) {
    super(message);
  }
}

// The number goes into a header, for tools that know NATS micro only.
const status: Record<string, number> = {
  invalid_request: 400, invalid_arguments: 400, not_allowed: 403, not_found: 404, conflict: 409, too_large: 413,
  quota_exceeded: 507, overloaded: 429, cancelled: 499, unavailable: 503, timeout: 504, worker_lost: 502, internal: 500,
};
const retryable = new Set(["timeout", "overloaded", "unavailable", "worker_lost"]);

/** respondError answers a request with an error: two headers and a body. */
export function respondError(m: Msg, error: ToolbusError): void {
  const h = headers();
  h.set("Nats-Service-Error-Code", String(status[error.code] ?? 500));
  h.set("Nats-Service-Error", `${error.code}: ${error.message}`.replace(/[\x00-\x1f\x7f]/g, " ").slice(0, 512));
  const { code, message, details } = error;
  const body = { error: { code, message, retryable: retryable.has(code), ...(details && { details }) } };
  m.respond(JSON.stringify(body), { headers: h });
}

/** errorOf is the error that a reply carries. */
function errorOf(reply: Msg): ToolbusError | undefined {
  if (!reply.headers?.has("Nats-Service-Error-Code")) return undefined;
  try {
    const { error } = reply.json<{ error: { code: string; message: string; details?: ErrorDetails } }>();
    return new ToolbusError(error.code, error.message, error.details);
  } catch {
    return new ToolbusError("internal", `unreadable error reply: ${reply.headers.get("Nats-Service-Error")}`);
  }
}

export interface RequestOptions {
  timeoutMs?: number;
  headers?: MsgHdrs;
}

/** send sends a request and returns its reply, or throws the error that it carries. */
export async function send(nc: NatsConnection, to: string, body: string | Uint8Array, options: RequestOptions = {}): Promise<Msg> {
  const { timeoutMs = 10_000, headers: h } = options;
  for (let attempt = 1; ; attempt++) {
    try {
      const reply = await nc.request(to, body, { timeout: timeoutMs, ...(h && { headers: h }) });
      const error = errorOf(reply);
      if (error) throw error;
      return reply;
    } catch (e) {
      if (e instanceof NoRespondersError || (e instanceof RequestError && e.isNoResponders())) {
        // Nobody took it. A replica may just have left: believe it the third time.
        if (attempt === 3) throw new ToolbusError("unavailable", `nobody answers on ${to}`);
        await sleep(10);
      } else if (e instanceof TimeoutError || (e instanceof RequestError && e.cause instanceof TimeoutError)) {
        throw new ToolbusError("timeout", `no reply on ${to} in time`);
      } else {
        throw e;
      }
    }
  }
}

/** request is send for JSON. */
export async function request<Reply>(nc: NatsConnection, to: string, body: unknown, options?: RequestOptions): Promise<Reply> {
  return (await send(nc, to, JSON.stringify(body), options)).json<Reply>();
}

interface Blob {
  id: string;
  size: number; // bytes
  chunks: number;
  sha256: string;
}

/** Caller says whose large bodies they are: agents use one family of subjects, workers the other. */
export interface Caller {
  family: "agent" | "worker";
  tenant: string;
  agent: string;
}

const maxSpill = 16 * 1024 * 1024; // bytes
const maxChunks = 4096;

const sha256 = (data: Uint8Array): string => createHash("sha256").update(data).digest("hex");

/**
 * pack makes the body and headers of a call or a reply. A body that does not fit
 * a message is stored in chunks first, and a header says where.
 */
export async function pack(nc: NatsConnection, who: Caller, value: unknown, h: MsgHdrs = headers()): Promise<{ body: Uint8Array; headers: MsgHdrs }> {
  const data = new TextEncoder().encode(JSON.stringify(value));
  const chunkSize = (nc.info?.max_payload ?? 1024 * 1024) - 8192; // the rest is for headers
  if (data.length <= chunkSize) return { body: data, headers: h };
  if (data.length > maxSpill) {
    throw new ToolbusError("too_large", `the body is ${data.length} bytes, at most ${maxSpill} are allowed`, { limit: maxSpill, actual: data.length });
  }
  const blob: Blob = { id: randomUUID(), size: data.length, chunks: Math.ceil(data.length / chunkSize), sha256: sha256(data) };
  const to = subject(who.family, who.tenant, who.agent, "blob", blob.id);
  for (let i = 0; i < blob.chunks; i++) {
    const numbered = headers();
    numbered.set("Toolbus-Chunk", String(i));
    const ack = (await send(nc, to, data.subarray(i * chunkSize, (i + 1) * chunkSize), { headers: numbered })).json<{ stream?: string; error?: { description?: string } }>();
    if (ack.error || !ack.stream) throw new ToolbusError("unavailable", `chunk ${i} was not stored: ${ack.error?.description ?? "no reason"}`);
  }
  h.set("Toolbus-Blob", JSON.stringify(blob));
  return { body: new Uint8Array(), headers: h };
}

/** unpack is the inverse of pack. An empty body is an empty object. */
export async function unpack<T>(nc: NatsConnection, who: Caller, m: Msg): Promise<T> {
  const description = m.headers?.get("Toolbus-Blob");
  let data = m.data;
  if (description) {
    const blob = JSON.parse(description) as Blob;
    if (blob.size > maxSpill) throw new ToolbusError("too_large", `the body is ${blob.size} bytes, at most ${maxSpill} are allowed`, { limit: maxSpill, actual: blob.size });
    if (!isName(blob.id) || !(blob.chunks >= 1 && blob.chunks <= Math.min(blob.size, maxChunks))) throw new ToolbusError("invalid_request", "Toolbus-Blob describes no blob");
    const from = subject(who.family, who.tenant, who.agent, "fetch", blob.id);
    const parts: Uint8Array[] = [];
    for (let chunk = 0; chunk < blob.chunks; chunk++) {
      parts.push((await send(nc, from, JSON.stringify({ chunk }))).data);
    }
    data = Buffer.concat(parts);
    if (sha256(data) !== blob.sha256) throw new ToolbusError("invalid_request", "the fetched body has another SHA-256");
  }
  if (data.length === 0) return {} as T;
  try {
    return JSON.parse(new TextDecoder().decode(data)) as T;
  } catch (e) {
    throw new ToolbusError("invalid_request", `the body is not valid JSON: ${(e as Error).message}`);
  }
}

/**
 * isInbox tells whether a request may be answered. NATS does not check the reply
 * subject that a client sets: an answer to another tenant's subject would be a
 * question to that tenant's tools, asked by us.
 */
export const isInbox = (reply: string | undefined): reply is string => !!reply && !reply.startsWith("toolbus.v1.") && !reply.startsWith("$");

/** isName checks tenants, agents, tools and ids. */
export const isName = (v: unknown): v is string => typeof v === "string" && /^[A-Za-z0-9_-]{1,64}$/.test(v);

/** isChat checks a chat id: 1 to 256 bytes without control characters. */
export const isChat = (v: unknown): v is string =>
  typeof v === "string" && v !== "" && Buffer.byteLength(v) <= 256 && !/[\x00-\x1f\x7f-\x9f]/.test(v);

export interface CallRequest {
  callId?: string;
  chatId?: string;
  arguments?: Json;
  timeoutMs?: number;
  idempotencyKey?: string;
}

export interface CallReply {
  callId: string;
  success: boolean;
  content: string; // for the model
  errorMessage?: string;
  data?: Json; // for programs
  durationMs: number;
}

export interface ToolDefinition {
  name: string;
  description: string;
  inputSchema: Json;
  version?: string;
  timeoutMs?: number;
}
