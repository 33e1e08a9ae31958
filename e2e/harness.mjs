// Holdfast seen from outside: a Redis of its own, real `holdfast serve` processes that are killed, frozen and
// started again by pid, and stock clients. A file of tests makes one suite() and writes scenarios in it.
//
//   HOLDFAST_BIN    the binary to test; without it one is built
//   HOLDFAST_LONG   1: the long forms of the tests whose point is the time they last
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, statSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { io } from 'socket.io-client';

export { sleep };
export const LONG = process.env.HOLDFAST_LONG === '1';
export const root = dirname(dirname(fileURLToPath(import.meta.url)));
export const workdir = mkdtempSync(join(tmpdir(), 'holdfast-e2e-'));

// Whatever way this process ends, nothing that it started outlives it. setpriv makes the kernel see to that when
// this process is killed and can do nothing itself; it keeps the pid.
const running = new Set();
const setpriv = ['/usr/bin/setpriv', '/bin/setpriv'].find(existsSync);
const bound = (command, args) => (setpriv ? [setpriv, ['--pdeathsig', 'KILL', command, ...args]] : [command, args]);
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
  rmSync(workdir, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));

// --- waiting and measuring --------------------------------------------------------

// waitFor resolves with the first truthy value of probe, or fails after `within` ms, saying what it waited for.
export async function waitFor(what, probe, within = 10_000) {
  const end = performance.now() + within;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (performance.now() > end) assert.fail(`${what}: not within ${within} ms`);
    await sleep(20);
  }
}

// pace calls once(0), once(1) … every `every` ms until over() says so. What a busy process is late with it catches up on,
// so that the load is the one asked for.
export async function pace(every, over, once) {
  const began = performance.now();
  for (let n = 0; !over(); await sleep(every)) {
    for (; n * every <= performance.now() - began; n++) once(n);
  }
}

// A promise that the test settles itself, to hold a handler where it wants it.
export function gate() {
  let open;
  const opened = new Promise((r) => { open = r; });
  return { opened, open };
}

export function tally(results) {
  const codes = {};
  for (const r of results) codes[r.ok ? 'ok' : `${r.code}: ${r.error}`] = (codes[r.ok ? 'ok' : `${r.code}: ${r.error}`] ?? 0) + 1;
  return JSON.stringify(codes);
}

export function noFailure(results, atLeast = 1) {
  assert.ok(results.every((r) => r.ok), `of ${results.length} answers: ${tally(results)}`);
  assert.ok(results.length >= atLeast, `only ${results.length} answers; the test wants ${atLeast}`);
}

let unique = 0;
export const fresh = (what) => `${what}-${process.pid}-${++unique}`;

// --- processes --------------------------------------------------------------------

const taken = new Set();
const isFree = (port) => new Promise((done) => {
  const probe = net.createServer().once('error', () => done(false));
  probe.listen(port, '127.0.0.1', () => probe.close(() => done(true)));
});

// freePort finds `count` consecutive ports. They lie below the range from which the kernel takes the ports of
// outgoing connections, so that a server can be started again on its own.
export async function freePort(count = 1) {
  for (;;) {
    const first = 10_000 + Math.floor(Math.random() * 20_000);
    const ports = Array.from({ length: count }, (_, i) => first + i);
    if (ports.some((p) => taken.has(p))) continue;
    if (!(await Promise.all(ports.map(isFree))).every(Boolean)) continue;
    ports.forEach((p) => taken.add(p));
    return first;
  }
}

let built;
export function binary() {
  if (process.env.HOLDFAST_BIN) return Promise.resolve(resolve(root, process.env.HOLDFAST_BIN));
  built ??= promisify(execFile)('go', ['build', '-o', join(workdir, 'holdfast'), '.'], { cwd: root }).then(() => join(workdir, 'holdfast'));
  return built;
}

// The environment without any setting of Holdfast, so that a test alone decides what is set.
export const cleanEnv = (extra = {}) => ({
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('HOLDFAST_'))),
  ...extra,
});

// Process is one child with its output in a file, which grows over restarts. With `talks` its input and its standard
// output are the test's own: child.stdin and child.stdout.
export class Process {
  constructor(name, command, args, { env = {}, cwd, talks } = {}) {
    Object.assign(this, { name, command, args, env, cwd, talks, output: join(workdir, `${fresh(name)}.log`) });
    closeSync(openSync(this.output, 'a'));
  }

  start() {
    assert.ok(!this.alive, `${this.name} runs already`);
    const fd = openSync(this.output, 'a');
    const child = spawn(...bound(this.command, this.args), { stdio: this.talks ? ['pipe', 'pipe', fd] : ['ignore', fd, fd], env: cleanEnv(this.env), cwd: this.cwd });
    closeSync(fd);
    running.add(child);
    this.child = child;
    this.exited = new Promise((done) => {
      const end = (code, signal) => { running.delete(child); done({ code, signal }); };
      child.once('exit', end);
      child.once('error', (err) => end(null, err.message));
    });
    return this;
  }

  get alive() { return !!this.child && running.has(this.child); }
  get log() { return readFileSync(this.output, 'utf8'); }
  get logSize() { return statSync(this.output).size; }

  // kill is what the machine does to a process: no goodbye.
  async kill() {
    if (this.alive) this.child.kill('SIGKILL');
    await this.exited;
  }

  // end is what an operator does; it resolves with how the process ended.
  async end(within = 20_000) {
    this.child.kill('SIGTERM');
    return this.ended(within);
  }

  async ended(within) {
    const late = new AbortController();
    const end = await Promise.race([this.exited, sleep(within, undefined, { signal: late.signal }).catch(() => {})]);
    late.abort();
    assert.ok(end, `${this.name} has not ended within ${within} ms; it said:\n${this.log.slice(-2000)}`);
    return end;
  }

  freeze() { this.child.kill('SIGSTOP'); }
  thaw() { this.child.kill('SIGCONT'); }
}

// Redis is a server of our own that can be killed and started again with what it had on disk.
export class Redis extends Process {
  static async start() {
    const port = await freePort();
    const dir = join(workdir, `redis-${port}`);
    mkdirSync(dir);
    const redis = new Redis('redis', 'redis-server', [
      '--port', `${port}`, '--bind', '127.0.0.1', '--dir', dir, '--save', '', '--appendonly', 'yes', '--appendfsync', 'everysec',
      '--maxmemory-policy', 'noeviction',
    ]);
    redis.port = port;
    redis.url = `redis://127.0.0.1:${port}`;
    await redis.again();
    return redis;
  }

  async again() {
    this.start();
    await waitFor('redis answers', async () => {
      assert.ok(this.alive, `redis-server ended at once:\n${this.log}`);
      return (await this.reply('PING')) === '+PONG';
    });
  }

  // reply sends one inline command and resolves with the first line of the answer, '' if there is none.
  reply(command) {
    return new Promise((done) => {
      let answer = '';
      const socket = net.connect(this.port, '127.0.0.1', () => socket.write(`${command}\r\n`));
      socket.on('data', (data) => { answer += data; if (answer.includes('\r\n')) { done(answer.split('\r\n')[0]); socket.destroy(); } });
      socket.on('error', () => {}).on('close', () => done(''));
    });
  }
}

// get resolves with {status, body}; status 0 when nobody answered.
export const get = (url, within = 2000) => new Promise((done) => {
  const none = () => done({ status: 0, body: '' });
  const { get } = url.startsWith('https:') ? https : http;
  const request = get(url, { agent: false, timeout: within, rejectUnauthorized: false }, (response) => {
    let body = '';
    response.setEncoding('utf8').on('data', (chunk) => { body += chunk; }).on('end', () => done({ status: response.statusCode, body })).on('error', none);
  });
  request.on('timeout', () => request.destroy()).on('error', none);
});

const asArgs = (flags) => Object.entries(flags).flatMap(([name, value]) => (value === true ? [`--${name}`] : [`--${name}`, `${value}`]));

export class Replica extends Process {
  // start does not wait; ready does.
  async ready(within = 20_000) {
    await waitFor(`${this.name} is ready`, async () => {
      assert.ok(this.alive, `${this.name} ended:\n${this.log.slice(-2000)}`);
      return (await get(`${this.url}/readyz`)).status === 200;
    }, within);
  }

  async again() {
    this.start();
    await this.ready();
  }
}

// Cluster is some replicas of one fresh namespace. flags go to each of them, as does env.
export class Cluster {
  constructor({ replicas = 2, flags = {}, env = {}, redis } = {}) {
    Object.assign(this, { size: replicas, flags: { insecure: true, ...flags }, env, redis, replicas: [] });
    this.ownsRedis = !redis;
    this.namespace = fresh('e2e');
  }

  async start() {
    this.redis ??= await Redis.start();
    for (let i = 0; i < this.size; i++) this.replicas.push(await this.replica(`${this.namespace}-${i}`));
    for (const r of this.replicas) r.start();
    await Promise.all(this.replicas.map((r) => r.ready()));
    return this;
  }

  // replica makes one more process of this cluster, not started.
  async replica(instance, flags = {}) {
    const port = await freePort();
    const url = `${this.flags['tls-cert'] ? 'https' : 'http'}://127.0.0.1:${port}`;
    const all = { redis: this.redis.url, namespace: this.namespace, listen: `127.0.0.1:${port}`, advertise: url, instance, 'log-format': 'json', ...this.flags, ...flags };
    for (const name of Object.keys(all)) if (all[name] === false) delete all[name];
    const replica = new Replica(instance, await binary(), ['serve', ...asArgs(all)], { env: this.env });
    return Object.assign(replica, { port, url, instance });
  }

  get urls() { return this.replicas.map((r) => r.url); }

  // whole brings back what a scenario has killed or frozen.
  async whole() {
    if (!this.redis.alive) await this.redis.again();
    for (const r of this.replicas) if (r.alive) r.thaw(); else r.start();
    await Promise.all(this.replicas.map((r) => r.ready()));
  }

  async stop() {
    await Promise.all(this.replicas.map((r) => r.kill()));
    if (this.ownsRedis) await this.redis?.kill();
  }
}

// balancer gives connections to replicas in turn, and passes over those that do not answer. It knows nothing of what
// is said over them, TLS included.
export async function balancer(urls) {
  const ports = urls.map((u) => Number(new URL(u).port));
  const open = new Set();
  let next = 0;
  const server = net.createServer((client) => {
    open.add(client);
    client.on('close', () => open.delete(client)).on('error', () => {});
    const first = next++;
    const attempt = (tried) => {
      const target = net.connect(ports[(first + tried) % ports.length], '127.0.0.1');
      let connected = false;
      target.on('connect', () => {
        connected = true;
        client.pipe(target).pipe(client);
        client.on('close', () => target.destroy());
      });
      target.on('error', () => { if (connected || tried === ports.length - 1 || client.destroyed) client.destroy(); else attempt(tried + 1); });
      target.on('close', () => { if (connected) client.destroy(); });
    };
    attempt(0);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return {
    url: `${new URL(urls[0]).protocol}//127.0.0.1:${server.address().port}`,
    close() { server.close(); for (const c of open) c.destroy(); },
  };
}

// --- clients ----------------------------------------------------------------------

// ask emits with an ack and resolves with what came, and the ms it took. When no ack comes, or the client loses
// its connection first, ok is false and the code NO_ANSWER.
export async function ask(socket, event, body, within = 10_000) {
  const began = performance.now();
  const args = body === undefined ? [] : [body];
  let answer;
  try { answer = await socket.timeout(within).emitWithAck(event, ...args); } catch (err) { answer = { ok: false, code: 'NO_ANSWER', error: err.message }; }
  return { ...answer, ms: Math.round(performance.now() - began) };
}

// call is ask for rpc-call; a call whose own time is up is still given a while to say so.
export const call = (socket, method, params, more = {}) => ask(socket, 'rpc-call', { method, params, ...more }, (more.timeout ?? 30_000) + 5000);

export const online = (socket, within = 15_000) => waitFor('the client is connected', () => socket.connected, within);

// drop ends the connection as a network does: the client notices and reconnects by itself.
export const drop = (socket) => socket.io.engine.close();

// vanish is drop for good, as when the client's process dies.
export const vanish = (socket) => { socket.io.reconnection(false); drop(socket); };

// Clients are the clients of one scenario and their loops of calls; close ends them all.
export class Clients {
  constructor(urls) { Object.assign(this, { urls, all: [], loops: [] }); }

  // client connects to replica i, and after a loss to the next one, as behind a load balancer. It keeps count:
  // .at is the replica it is going to, .ends are the reasons of its disconnects, .refusals its connect errors.
  client(i, auth, options = {}) {
    const socket = io(this.urls[i], { transports: ['websocket'], forceNew: true, reconnectionDelay: 100, reconnectionDelayMax: 400, auth, ...options });
    Object.assign(socket, { at: i, ends: [], refusals: [] });
    socket.io.on('reconnect_attempt', () => { socket.at = (socket.at + 1) % this.urls.length; socket.io.uri = this.urls[socket.at]; });
    socket.on('disconnect', (reason) => socket.ends.push(reason));
    socket.on('connect_error', (err) => socket.refusals.push({ message: err.message, ...err.data }));
    this.all.push(socket);
    return socket;
  }

  async caller(i, user, auth = {}, options = {}) {
    const socket = this.client(i, { user, ...auth }, options);
    await online(socket);
    return socket;
  }

  // daemon is a client that registers its methods each time it connects, and answers with what they return.
  async daemon(i, user, methods, { peer = fresh('daemon'), replaySafe, auth, ...options } = {}) {
    const socket = this.client(i, { user, peer, ...auth }, options);
    Object.assign(socket, { peer, requests: [], registrations: 0 });
    socket.on('rpc-request', async (request, ack) => {
      socket.requests.push(request);
      ack(await methods[request.method](request.params, request));
    });
    socket.on('connect', async () => {
      const acks = await Promise.all(Object.keys(methods).map((method) => ask(socket, 'rpc-register', { method, ...(replaySafe && { replaySafe }) })));
      if (acks.every((a) => a.ok)) socket.registrations++;
      else if (socket.connected) socket.trouble = acks;
    });
    await waitFor(`${peer} has registered`, () => { assert.ok(!socket.trouble, JSON.stringify(socket.trouble)); return socket.registrations; });
    return socket;
  }

  // loop runs `once` again and again: one after another, or at a pace of `every` ms without waiting for the former.
  // An assertion that fails in it counts as a failed answer.
  loop(once, { every = 0 } = {}) {
    const results = [];
    const pending = new Set();
    let on = true;
    const start = () => {
      const run = once(results.length)
        .catch((err) => ({ ok: false, code: 'ASSERTION', error: err.message }))
        .then((r) => { results.push(r); pending.delete(run); });
      pending.add(run);
      return run;
    };
    const done = (async () => {
      if (every) await pace(every, () => !on, start);
      while (on) await start();
      await Promise.all(pending);
    })();
    const running = { results, async stop() { on = false; await done; return results; } };
    this.loops.push(running);
    return running;
  }

  close() {
    for (const running of this.loops) void running.stop();
    for (const socket of this.all) socket.close();
  }
}

// --- suites -----------------------------------------------------------------------

// suite is one cluster, started with the first scenario and stopped after the last. A scenario gets clients of
// its own, a user of its own and a whole cluster; when it fails, what the processes said meanwhile is printed.
export function suite(options) {
  const cluster = new Cluster(options);
  let started;
  after(async () => {
    await cluster.stop();
    setTimeout(() => { console.error('the tests are over, but something keeps their process running'); process.exit(1); }, 10_000).unref();
  });

  const scene = (play, others = () => []) => async (t) => {
    await (started ??= cluster.start());
    const clients = new Clients(cluster.urls);
    const processes = () => [...cluster.replicas, cluster.redis, ...others()].filter(Boolean);
    const from = new Map(processes().map((p) => [p, p.logSize]));
    try {
      await play(Object.assign(clients, { t, cluster, user: fresh('user') }));
      for (const p of processes()) assert.doesNotMatch(p.log.slice(from.get(p) ?? 0), /^(panic: |fatal error: |WARNING: DATA RACE)/m, p.name);
    } catch (err) {
      for (const p of processes()) console.error(`--- ${p.name} during "${t.name}"\n${excerpt(p.log.slice(from.get(p) ?? 0))}`);
      throw err;
    } finally {
      clients.close();
    }
  };

  return {
    cluster,
    scenario(name, play, timeout = LONG ? 600_000 : 90_000) {
      test(name, { timeout }, async (t) => {
        if (started) { await started; await cluster.whole(); }
        const extra = [];
        await scene(async (x) => {
          // alone starts a cluster with other flags on the same Redis, for this scenario only.
          x.alone = async (more) => { const c = new Cluster({ redis: cluster.redis, ...more }); extra.push(c); await c.start(); return Object.assign(c, { clients: new Clients(c.urls) }); };
          await play(x);
        }, () => extra.flatMap((c) => c.replicas))(t).finally(async () => {
          for (const c of extra) { c.clients?.close(); await c.stop(); }
        });
      });
    },
    // together plays scenarios that mostly wait, and leave the cluster alone, at the same time.
    together(name, scenes, timeout = LONG ? 600_000 : 90_000) {
      test(name, { timeout, concurrency: true }, (t) => Promise.all(Object.entries(scenes).map(([title, play]) => t.test(title, { timeout }, scene(play)))));
    },
  };
}

function excerpt(log, lines = 120) {
  const all = log.trimEnd().split('\n');
  return all.length <= lines ? all.join('\n') : [`(${all.length - lines} lines left out)`, ...all.slice(-lines)].join('\n');
}
