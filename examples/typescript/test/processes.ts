// Programs under test, as real processes.

import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";

/** Program is a running process that prints one JSON object a line. */
export class Program {
  readonly events: unknown[] = [];
  private readonly child: ChildProcess;
  private readonly ended: Promise<number | null>;
  private stderr = "";
  private wake: () => void = () => undefined;
  private over = false;

  constructor(readonly name: string, path: string, args: string[]) {
    this.child = spawn(path, args, { stdio: ["ignore", "pipe", "pipe"], env: { PATH: process.env["PATH"], HOME: process.env["HOME"] } });
    this.child.stderr?.on("data", (d: Buffer) => (this.stderr += d.toString()));
    createInterface({ input: this.child.stdout! }).on("line", (line) => {
      this.events.push(JSON.parse(line));
      this.wake();
    });
    this.ended = new Promise((resolve, reject) => {
      this.child.once("error", reject);
      this.child.once("close", (code) => {
        this.over = true;
        this.wake();
        resolve(code);
      });
    });
  }

  /** event waits for the first event that has a field. */
  async event<T>(field: string): Promise<T> {
    const deadline = Date.now() + 20_000;
    for (;;) {
      const found = this.events.find((e) => typeof e === "object" && e !== null && field in e);
      if (found) return found as T;
      if (this.over || Date.now() > deadline) throw new Error(`${this.name} printed no ${field}; stderr:\n${this.stderr}`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 100);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** end waits for the process's own end. */
  async end(): Promise<number | null> {
    const timer = setTimeout(() => this.child.kill("SIGKILL"), 30_000);
    try {
      return await this.ended;
    } finally {
      clearTimeout(timer);
    }
  }

  /** stop asks it to end. */
  async stop(): Promise<number | null> {
    this.child.kill("SIGTERM");
    return this.end();
  }

  /** kill ends it as a crash would. */
  async kill(): Promise<void> {
    this.child.kill("SIGKILL");
    await this.ended;
  }

  /** output is what it wrote to stderr. */
  output(): string {
    return this.stderr;
  }
}
