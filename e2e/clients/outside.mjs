// Clients that are not JavaScript, each a process that is led by lines of JSON:
//
//   to it     first {url, auth, transports, methods}, then {ask, event, data} and {transport}
//   from it   {connect}, {disconnect}, {refused}, {registered, answer}, {event, args}, {answer, data}
//
// Bytes are {$bytes: base64} there and Buffers here.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { fresh, Process, root, sleep, waitFor, workdir } from '../harness.mjs';

const run = promisify(execFile);
const here = join(root, 'e2e', 'clients');

// Debian's python3 is tried besides the first one in the path, which need not be the one that its packages are for.
async function python(program, modules) {
  const why = [];
  for (const command of ['python3', '/usr/bin/python3']) {
    try {
      await run(command, ['-c', `import ${modules.join(', ')}`]);
      return { command, args: [join(here, 'python', program)] };
    } catch (err) {
      why.push(err.code === 'ENOENT' ? `${command} is missing` : `${command}: ${`${err.stderr}`.trim().split('\n').at(-1)}`);
    }
  }
  return { missing: why[0] };
}

// The client's module is not downloaded here: the tests must pass, and not wait, where there is no network.
let built;
const go = () => (built ??= (async () => {
  const command = join(workdir, 'go-client');
  try {
    await run('go', ['build', '-o', command, '.'], { cwd: join(here, 'go'), env: { ...process.env, GOPROXY: 'off', GOFLAGS: '-mod=readonly' } });
    return { command, args: [] };
  } catch (err) {
    return { missing: `go build: ${`${err.stderr || err.message}`.trim().split('\n').at(-1)}` };
  }
})());

// The libraries. ready() is {command, args}, or {missing} with what the machine lacks. recovers: it knows connection
// state recovery. The Go client does not send while a poll is under way: with any server, an answer and a pong that wait for
// the same poll end it by a ping timeout. So it is not asked to live on polling.
const all = [undefined, ['polling'], ['websocket']];
export const libraries = [
  { name: 'python-socketio with threads', transports: all, ready: () => python('threads.py', ['socketio', 'requests', 'websocket']) },
  { name: 'python-socketio with asyncio', transports: all, ready: () => python('tasks.py', ['socketio', 'aiohttp']) },
  { name: 'the Go client of zishang520', transports: [undefined, ['websocket']], ready: go, recovers: true },
];

const pack = (value) => {
  if (Buffer.isBuffer(value)) return { $bytes: value.toString('base64') };
  if (Array.isArray(value)) return value.map(pack);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, pack(v)]));
};
const unpack = (value) => {
  if (Array.isArray(value)) return value.map(unpack);
  if (value === null || typeof value !== 'object') return value;
  if (typeof value.$bytes === 'string') return Buffer.from(value.$bytes, 'base64');
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, unpack(v)]));
};

// Outside is one such client. It keeps count: .connects are what it was told at each CONNECT, .ends its disconnects,
// .events what it got, .registered how many of its methods are registered since it last connected.
export class Outside extends Process {
  constructor(name, { command, args }, first) {
    super(name, command, args, { talks: true });
    Object.assign(this, { first, connects: [], ends: [], refusals: [], events: [], registered: 0, asked: 0, waiting: new Map() });
  }

  start() {
    super.start();
    this.child.stdin.on('error', () => {}); // it has ended; whoever waits for it is told so
    createInterface({ input: this.child.stdout }).on('line', (line) => this.hears(unpack(JSON.parse(line))));
    this.tell(this.first);
    return this;
  }

  tell(line) { this.child.stdin.write(`${JSON.stringify(pack(line))}\n`); }

  hears(line) {
    if ('connect' in line) {
      this.connects.push(line.connect);
      this.registered = 0;
    } else if ('disconnect' in line) this.ends.push(line.disconnect);
    else if ('refused' in line) this.refusals.push(line.refused);
    else if ('event' in line) this.events.push(line);
    else if ('registered' in line) {
      if (!line.answer?.ok) this.trouble = line;
      else this.registered++;
    } else this.waiting.get(line.answer)?.(line.data);
  }

  async question(line, within) {
    const late = new AbortController();
    try {
      return await Promise.race([
        new Promise((done) => { this.waiting.set(Object.values(line)[0], done); this.tell(line); }),
        sleep(within, { ok: false, code: 'NO_ANSWER', error: `no answer within ${within} ms` }, { signal: late.signal }),
      ]);
    } finally {
      late.abort();
    }
  }

  ask(event, data, within = 10_000) { return this.question({ ask: ++this.asked, event, data }, within); }
  call(method, params) { return this.ask('rpc-call', { method, params }, 35_000); }
  transport() { return this.question({ transport: ++this.asked }, 10_000); }
  got(event) { return this.events.filter((e) => e.event === event).map((e) => e.args[0]); }

  async online(within = 30_000) {
    await waitFor(`${this.name} has registered`, () => {
      assert.ok(this.alive, `${this.name} ended:\n${this.log.slice(-2000)}`);
      assert.ok(!this.trouble, `${this.name}: ${JSON.stringify(this.trouble)}`);
      return this.connects.length && this.registered === this.first.methods.length;
    }, within);
  }
}

// outsiders starts one client of the library for each of the transports, undefined being its own choice.
export async function outsiders(x, library, program, url, transports = library.transports) {
  const clients = transports.map((list) => {
    const peer = fresh('outside');
    const first = { url, auth: { user: x.user, peer }, transports: list ?? null, methods: [`echo-${peer}`] };
    const client = new Outside(`${library.name}, ${list ?? 'its own transports'}`, program, first).start();
    x.t.after(() => client.kill());
    return Object.assign(client, { peer, method: first.methods[0], recovers: !!library.recovers, settles: list?.[0] ?? 'websocket' });
  });
  await Promise.all(clients.map((c) => c.online()));
  return clients;
}
