// The command line: what starts, what does not, and what is said about it.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { binary, call, cleanEnv, Clients, fresh, freePort, get, noFailure, online, Process, root, suite, waitFor, workdir } from './harness.mjs';

const { scenario } = suite();

// run ends with {code, output}; a command that does not end within 15 s fails the test.
async function run(args, env = {}) {
  const process = new Process('holdfast', await binary(), args, { env }).start();
  try {
    const { code, signal } = await process.ended(15_000);
    return { code, signal, output: process.log };
  } finally {
    await process.kill();
  }
}

scenario('S2.1 serve without a Redis ends at once with code 2, and names the flag and the variable', async () => {
  const listen = `127.0.0.1:${await freePort()}`;
  for (const [args, env] of [
    [['serve', '--insecure', '--listen', listen], {}],
    [['serve', '--listen', listen], { HOLDFAST_INSECURE: 'true' }],
    [['serve', '--insecure', '--listen', listen], { HOLDFAST_REDIS: '' }],
    [['serve', '--listen', listen], {}],
    // Set, and taken away again by the layer above.
    [['serve', '--insecure', '--redis', '', '--listen', listen], { HOLDFAST_REDIS: 'redis://127.0.0.1:6379' }],
  ]) {
    const began = performance.now();
    const { code, output } = await run(args, env);
    assert.equal(code, 2, output);
    assert.match(output, /--redis/);
    assert.match(output, /HOLDFAST_REDIS/);
    assert.ok(performance.now() - began < 3000, 'at once');
  }
});

scenario('S2.1 doctor finds before a deployment that the Redis is missing, out of reach, or keeps nothing', async (x) => {
  const missing = await run(['doctor']);
  assert.equal(missing.code, 2, missing.output);
  for (const name of [/--redis/, /HOLDFAST_REDIS/]) assert.match(missing.output, name);
  const nobody = await run(['doctor', '--redis', `redis://127.0.0.1:${await freePort()}`]);
  assert.equal(nobody.code, 1, nobody.output);
  const good = await run(['doctor'], { HOLDFAST_REDIS: x.cluster.redis.url });
  assert.equal(good.code, 0, good.output);
  assert.equal(await x.cluster.redis.reply('CONFIG SET maxmemory-policy allkeys-lru'), '+OK');
  try {
    const bad = await run(['doctor', '--redis', x.cluster.redis.url]);
    assert.equal(bad.code, 1, bad.output);
    assert.match(bad.output, /BAD .*allkeys-lru/);
  } finally {
    await x.cluster.redis.reply('CONFIG SET maxmemory-policy noeviction');
  }
});

// environments are those of the compose file's replicas, by service.
function environments() {
  const found = {};
  let service;
  for (const line of readFileSync(join(root, 'docker-compose.yml'), 'utf8').split('\n')) {
    const [, name] = line.match(/^  (\S+):$/) ?? [];
    if (name) service = name;
    const [, key, value] = line.match(/^      (HOLDFAST_\w+): "?([^"]*)"?$/) ?? [];
    if (key) (found[service] ??= {})[key] = value;
  }
  return found;
}

scenario('S2.1 the compose file names every setting that serve requires: as it is a replica starts, without one it says which', async (x) => {
  const all = environments();
  assert.ok(Object.keys(all).length >= 2, JSON.stringify(all));
  for (const env of Object.values(all)) {
    const port = await freePort();
    const here = { ...env, HOLDFAST_REDIS: x.cluster.redis.url, HOLDFAST_NAMESPACE: fresh('compose'), HOLDFAST_LISTEN: `127.0.0.1:${port}` };
    assert.ok(env.HOLDFAST_REDIS && env.HOLDFAST_NAMESPACE && env.HOLDFAST_INSTANCE && env.HOLDFAST_ADVERTISE);
    const replica = await x.cluster.replica(env.HOLDFAST_INSTANCE);
    Object.assign(replica, { args: ['serve'], env: here, url: `http://127.0.0.1:${port}` });
    try {
      await replica.again();
    } finally {
      await replica.kill();
    }
    for (const name of ['HOLDFAST_REDIS', 'HOLDFAST_INSECURE']) {
      const { code, output } = await run(['serve'], { ...here, [name]: '' });
      assert.equal(code, 2, output);
      assert.ok(output.includes(name), output);
    }
  }
});

scenario('S2.2 a replica logs every setting with where it came from, and its store; secrets are masked', async (x) => {
  const replica = await x.cluster.replica(fresh('shows'), { insecure: false, 'room-grace': '7s' });
  const secret = 'a secret of the tokens, long enough';
  replica.env = { HOLDFAST_TOKEN_KEY: secret, HOLDFAST_PEER_GRACE: '8s', HOLDFAST_ROOM_GRACE: '9s' };
  try {
    await replica.again();
    const lines = replica.log.split('\n').filter(Boolean).map((l) => JSON.parse(l));
    const shown = lines.find((l) => l['--redis']);
    assert.equal(shown['--redis'], `${x.cluster.redis.url} (flag)`);
    assert.equal(shown['--room-grace'], '7s (flag)', 'the flag wins over the variable');
    assert.equal(shown['--peer-grace'], '8s (environment)');
    assert.equal(shown['--rpc-grace'], '10s (default)');
    assert.equal(shown['--token-key'], '*** (environment)');
    // Every flag that the help lists.
    const help = await run(['serve', '--help']);
    const flags = [...help.output.matchAll(/^\s+(?:-\w, )?(--[a-z-]+)/gm)].map((m) => m[1]).filter((f) => f !== '--help' && f !== '--version');
    assert.ok(flags.length > 30, help.output);
    for (const flag of flags) assert.match(shown[flag] ?? '', / \((flag|environment|default)\)$/, flag);
    assert.ok(!replica.log.includes(secret));
  } finally {
    await replica.kill();
  }
});

scenario('S2.2 nothing makes a cluster of one that has no Redis: serve has no memory mode, and dev says that it is one', async () => {
  const listen = `127.0.0.1:${await freePort()}`;
  for (const redis of ['memory', 'memory://', 'memory://local', 'embedded', 'none', 'false', ' ', 'redis://', 'redis://:6379', '127.0.0.1']) {
    const { code, output } = await run(['serve', '--insecure', '--listen', listen, '--patience', '1s'], { HOLDFAST_REDIS: redis });
    assert.equal(code, 2, `${redis}: code ${code}\n${output}`);
    assert.match(output, /--redis/, redis);
  }
  const port = await freePort();
  const dev = new Process('dev', await binary(), ['dev', '--listen', `127.0.0.1:${port}`], { env: { HOLDFAST_REDIS: 'redis://127.0.0.1:1' } }).start();
  try {
    await waitFor('it is ready', async () => { assert.ok(dev.alive, dev.log); return (await get(`http://127.0.0.1:${port}/readyz`)).status === 200; });
    assert.match(dev.log, /embedded/i);
  } finally {
    await dev.kill();
  }
});

scenario('serve without a key, and not insecure, does not start', async (x) => {
  const { code, output } = await run(['serve', '--redis', x.cluster.redis.url, '--listen', `127.0.0.1:${await freePort()}`]);
  assert.ok(code > 0, `code ${code}\n${output}`);
  assert.match(output, /--token-key/);
});

scenario('an unknown flag or a bad value ends with a message', async (x) => {
  for (const args of [['serve', '--no-such-flag'], ['serve', '--insecure', '--redis', x.cluster.redis.url, '--rpc-grace', 'soon'], ['no-such-command']]) {
    const { code, output } = await run(args);
    assert.ok(code > 0, `${args}: code ${code}`);
    assert.ok(output.includes(args.at(-1)), output);
  }
});

scenario('every setting can come from the environment', async (x) => {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const instance = fresh('by-env');
  const replica = Object.assign(await x.cluster.replica(instance), { port, url, args: ['serve'] });
  replica.env = {
    HOLDFAST_REDIS: x.cluster.redis.url, HOLDFAST_NAMESPACE: x.cluster.namespace, HOLDFAST_LISTEN: `127.0.0.1:${port}`, HOLDFAST_INSTANCE: instance,
    HOLDFAST_ADVERTISE: url, HOLDFAST_INSECURE: 'true', HOLDFAST_RPC_GRACE: '10s', HOLDFAST_PEER_GRACE: '10s', HOLDFAST_LATE_ACK: '10s',
    HOLDFAST_RECOVERY_WINDOW: '2m', HOLDFAST_PATIENCE: '5s', HOLDFAST_LOG_LEVEL: 'info', HOLDFAST_LOG_FORMAT: 'console',
  };
  try {
    await replica.again();
    // It is a member of the same cluster.
    const clients = new Clients([url]);
    const caller = await clients.caller(0, x.user);
    await x.daemon(0, x.user, { echo: (p) => p });
    assert.equal((await call(caller, 'echo', 1)).result, 1);
    clients.close();
    assert.deepEqual(await replica.end(), { code: 0, signal: null });
  } finally {
    await replica.kill();
  }
});

scenario('health, readiness and metrics are on the same address', async (x) => {
  for (const r of x.cluster.replicas) {
    for (const path of ['/healthz', '/readyz', '/metrics']) assert.equal((await get(r.url + path)).status, 200, path);
    assert.match((await get(`${r.url}/metrics`)).body, /^# (HELP|TYPE) /m);
  }
});

scenario('SIGTERM is a clean end', async (x) => {
  const replica = await x.cluster.replica(fresh('ends'));
  await replica.again();
  const clients = new Clients([replica.url]);
  await clients.caller(0, x.user);
  const began = performance.now();
  assert.deepEqual(await replica.end(), { code: 0, signal: null });
  assert.ok(performance.now() - began < 15_000);
  clients.close();
  assert.equal((await get(`${replica.url}/healthz`)).status, 0);
});

scenario('a second process of the same instance ends with a message, and the first is unharmed', async (x) => {
  const [first] = x.cluster.replicas;
  const daemon = await x.daemon(0, x.user, { echo: (p) => p });
  const second = await x.cluster.replica(first.instance);
  second.start();
  try {
    const { code, signal } = await second.ended(20_000);
    assert.ok(code > 0, `code ${code}, signal ${signal}\n${second.log}`);
    assert.ok(second.log.includes(first.instance), second.log);
  } finally {
    await second.kill();
  }
  assert.ok(first.alive);
  noFailure([await call(await x.caller(1, x.user), 'echo', 1)]);
  assert.deepEqual(daemon.ends, []);
});

scenario('doctor --url tells a ready replica from one that is not there', async (x) => {
  const there = await run(['doctor', '--url', `${x.cluster.replicas[0].url}/readyz`]);
  assert.equal(there.code, 0, there.output);
  const nobody = await run(['doctor', '--url', `http://127.0.0.1:${await freePort()}/readyz`]);
  assert.ok(nobody.code > 0, nobody.output);
});

scenario('dev prints its addresses and an example that answers when node runs it as it is', async () => {
  const port = await freePort(2);
  const dev = new Process('dev', await binary(), ['dev', '--replicas', '2', '--listen', `127.0.0.1:${port}`]).start();
  try {
    const urls = [port, port + 1].map((p) => `http://127.0.0.1:${p}`);
    for (const url of urls) {
      await waitFor(`${url} is ready`, async () => (await get(`${url}/readyz`)).status === 200);
      await waitFor(`${url} is printed`, () => { assert.ok(dev.alive, dev.log); return dev.log.includes(url); }, 2000);
    }
    // The two are one cluster.
    const clients = new Clients(urls);
    await clients.daemon(0, 'u', { echo: (p) => p });
    const caller = clients.client(1, { user: 'u' });
    await online(caller);
    assert.equal((await call(caller, 'echo', 5)).result, 5);
    clients.close();

    const answer = await runExample(dev.log);
    assert.match(answer, /\bok\b['"]?: ?true|result/, answer);
    assert.deepEqual(await dev.end(), { code: 0, signal: null });
  } finally {
    await dev.kill();
  }
});

// runExample runs what the text shows, as a person would: a `node …` command in a shell, or else the lines of
// JavaScript in a file. It runs where socket.io-client is installed, and resolves with what it printed.
async function runExample(text) {
  const dir = join(workdir, 'example');
  mkdirSync(dir);
  symlinkSync(join(root, 'e2e', 'node_modules'), join(dir, 'node_modules'));
  const lines = text.split('\n');
  const command = lines.findIndex((l) => /^\s*(\$ )?node /.test(l));
  let file = 'bash';
  let args;
  if (command >= 0) {
    // The command goes on until its quotes are closed.
    let end = command + 1;
    const shown = () => lines.slice(command, end).join('\n').trim().replace(/^\$ /, '');
    while (end < lines.length && (shown().split("'").length % 2 === 0)) end++;
    args = ['-c', shown()];
  } else {
    const first = lines.findIndex((l) => /^\s*(import .* from |const .*require\()/.test(l));
    assert.ok(first >= 0, `no example in:\n${text}`);
    const indent = lines[first].match(/^\s*/)[0];
    let end = first;
    while (end < lines.length && (lines[end].startsWith(indent) || !lines[end].trim()) && !/^\s*(```|\{")/.test(lines[end])) end++;
    const code = lines.slice(first, end).map((l) => l.slice(indent.length)).join('\n').trim();
    const name = code.startsWith('import') ? 'example.mjs' : 'example.cjs';
    writeFileSync(join(dir, name), code);
    [file, args] = [process.execPath, [name]];
  }
  return new Promise((done, failed) => {
    execFile(file, args, { cwd: dir, env: cleanEnv(), timeout: 20_000, killSignal: 'SIGKILL' }, (err, stdout, stderr) => {
      if (err) failed(new Error(`the example failed: ${err.message}\n${stdout}\n${stderr}\n--- shown was\n${text}`)); else done(stdout);
    });
  });
}
