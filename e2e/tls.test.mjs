// HTTPS as stock clients meet it: certificates of our own that the clients are told of, requests that replicas hand to
// each other over TLS, and certificates that change.
import assert from 'node:assert/strict';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import tls from 'node:tls';
import { certificate } from './certificate.mjs';
import { ask, balancer, call, fresh, get, noFailure, online, suite, waitFor, workdir } from './harness.mjs';

const files = { cert: join(workdir, 'cert.pem'), key: join(workdir, 'key.pem'), ca: join(workdir, 'ca.pem') };
const write = (file, text) => { writeFileSync(`${file}.new`, text); renameSync(`${file}.new`, file); };
const first = certificate(1);
write(files.cert, first.cert);
write(files.key, first.key);
write(files.ca, first.cert);

const { scenario, cluster } = suite({ replicas: 2, flags: { 'tls-cert': files.cert, 'tls-key': files.key, 'tls-ca': files.ca } });
const ways = [['websocket'], ['polling'], undefined];
const clean = (clients) => clients.forEach((c) => assert.deepEqual([c.ends, c.refusals], [[], []], 'nothing went wrong on the way'));
const handedOn = async () => {
  const figures = await Promise.all(cluster.urls.map((u) => get(`${u}/metrics`)));
  return figures.reduce((sum, f) => sum + Number(f.body.match(/^holdfast_requests_forwarded_total (\d+)/m)[1]), 0);
};

scenario('clients that know the certificate connect by any transport, call each other, and are told rooms at https', async (x) => {
  const params = { text: 'é'.repeat(100_000), bytes: Buffer.alloc(100_000, 7) };
  for (const transports of ways) {
    await x.daemon(0, x.user, { echo: (p) => p }, { ca: first.cert, transports });
    for (const i of [0, 1]) {
      const caller = await x.caller(i, x.user, {}, { ca: first.cert, transports });
      assert.deepEqual((await call(caller, 'echo', params)).result, params);
      if (!transports) await waitFor('it has upgraded', () => caller.io.engine.transport.name === 'websocket');
      assert.deepEqual((await call(caller, 'echo', params)).result, params);
      const joined = await ask(caller, 'room-join', { room: fresh('room'), role: 'member' });
      assert.equal(joined.room.owner.url, cluster.urls[i]);
      clean([caller]);
    }
  }
  for (const transports of ways) {
    const stranger = x.client(0, { user: x.user }, { transports, reconnection: false });
    await waitFor('who does not know it does not trust it', () => stranger.refusals.length);
    assert.ok(!stranger.connected);
  }
});

scenario('requests are handed on over TLS, polling and upgrades, through a balancer without stickiness', async (x) => {
  const urls = x.urls.slice();
  const b = await balancer(urls);
  x.t.after(() => b.close());
  await x.daemon(0, x.user, { echo: (p) => p }, { ca: first.cert });
  x.urls = [b.url];
  const before = await handedOn();
  const clients = Array.from({ length: 10 }, (_, n) => x.client(0, { user: x.user, peer: `p${n}` }, { ca: first.cert, transports: ways[1 + (n & 1)] }));
  await Promise.all(clients.map((c) => online(c)));
  await waitFor('half of them have upgraded', () => clients.every((c, n) => c.io.engine.transport.name === (n & 1 ? 'websocket' : 'polling')));
  const params = { bytes: Buffer.alloc(300_000, 9) };
  for (let round = 0; round < 3; round++) {
    const answers = await Promise.all(clients.map((c) => call(c, 'echo', params)));
    noFailure(answers, clients.length);
    for (const a of answers) assert.deepEqual(a.result, params);
  }
  clean(clients);
  assert.ok((await handedOn()) > before, 'nothing was handed on');
});

scenario('a certificate that changes is served to whoever comes, and between replicas; nobody is disturbed', async (x) => {
  await x.daemon(0, x.user, { echo: (p) => p }, { ca: first.cert });
  const old = await Promise.all([0, 1].map((i) => x.caller(i, x.user, {}, { ca: first.cert })));
  const second = certificate(2);
  write(files.ca, first.cert + second.cert);
  write(files.key, second.key);
  write(files.cert, second.cert);
  const served = (url) => new Promise((done) => {
    const c = tls.connect({ port: new URL(url).port, host: '127.0.0.1', ca: second.cert }, () => { done(c.getPeerCertificate().serialNumber); c.destroy(); });
    c.on('error', () => done());
  });
  for (const url of cluster.urls) await waitFor('the new one is served', async () => (await served(url)) === '02');

  const urls = x.urls.slice();
  const b = await balancer(urls);
  x.t.after(() => b.close());
  x.urls = [b.url];
  const before = await handedOn();
  const clients = Array.from({ length: 8 }, (_, n) => x.client(0, { user: x.user, peer: fresh('late') }, { ca: second.cert, transports: ways[1 + (n & 1)] }));
  await Promise.all(clients.map((c) => online(c)));
  for (let round = 0; round < 2; round++) noFailure(await Promise.all(clients.map((c) => call(c, 'echo', round))), clients.length);
  noFailure(await Promise.all(old.map((c) => call(c, 'echo', 1))), 2);
  clean([...old, ...clients]);
  assert.ok((await handedOn()) > before, 'nothing was handed on');
});
