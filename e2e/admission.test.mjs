// Who gets in, and as whom.
import assert from 'node:assert/strict';
import { call, Clients, drop, fresh, get, online, suite, waitFor } from './harness.mjs';
import { b64, newKey, now, sign } from './token.mjs';

const key = newKey();
const issued = [];
function token(claims, { with: secret = key, alg } = {}) {
  const made = sign(secret, claims, alg);
  issued.push(made);
  return made;
}

// One replica has the key from the environment, the other from the flag; debug logs say as much as they ever do.
const { cluster, scenario } = suite({ flags: { insecure: false, 'log-level': 'debug' }, env: { HOLDFAST_TOKEN_KEY: key } });

const refused = async (x, auth, code) => {
  for (const i of [0, 1]) {
    const client = x.client(i, auth, { reconnection: false });
    await waitFor('an answer', () => client.connected || client.refusals.length, 5000);
    assert.equal(client.connected, false, 'it was let in');
    assert.equal(client.refusals[0].code, code, JSON.stringify(client.refusals));
    assert.ok(client.refusals[0].message, 'a text for people');
    client.close();
  }
};
const unauthenticated = (x, auth) => refused(x, auth, 'UNAUTHENTICATED');

scenario('without a token, or with none of its kind, nobody is let in', async (x) => {
  const absent = [undefined, {}, { user: 'alice' }, { user: 'alice', peer: 'p' }, { token: '' }, { token: null }, { token: 5 }, { token: {} }, { token: 'x' }, { token: 'a.b.c' }];
  for (const auth of absent) await unauthenticated(x, auth);
});

scenario('a wrong, unsigned or changed token is refused', async (x) => {
  const good = token({ sub: 'alice' });
  const [head, , signature] = good.split('.');
  await unauthenticated(x, { token: token({ sub: 'alice' }, { with: 'another key' }) });
  await unauthenticated(x, { token: token({ sub: 'alice' }, { with: '' }) });
  await unauthenticated(x, { token: token({ sub: 'alice' }, { alg: 'none' }) });
  await unauthenticated(x, { token: `${head}.${b64({ sub: 'root', exp: now() + 600 })}.${signature}` });
  await unauthenticated(x, { token: good.slice(0, -2) });
});

scenario('an expired token, one that is not valid yet, and one for nobody are refused', async (x) => {
  await unauthenticated(x, { token: token({ sub: 'alice', exp: now() - 60 }) });
  await unauthenticated(x, { token: token({ sub: 'alice', nbf: now() + 600 }) });
  await unauthenticated(x, { token: token({}) });
  await unauthenticated(x, { token: token({ sub: '' }) });
});

scenario('a valid token makes its subject the user, whatever else the client says', async (x) => {
  const alice = fresh('alice');
  const bob = fresh('bob');
  await x.daemon(0, bob, { who: () => alice }, { auth: { token: token({ sub: alice }) } });
  const [hers, his] = [x.client(1, { token: token({ sub: alice }) }), x.client(1, { token: token({ sub: bob }), user: alice })];
  await Promise.all([hers, his].map((c) => online(c)));
  assert.equal((await call(hers, 'who')).result, alice);
  assert.equal((await call(his, 'who')).code, 'RPC_NOT_AVAILABLE');
});

scenario('the peer claim fixes the peer id', async (x) => {
  const user = fresh('user');
  const fixed = token({ sub: user, peer: 'fixed' });
  const old = x.client(0, { token: fixed });
  await online(old);
  const told = new Promise((done) => old.on('peer-replaced', () => done(true)));
  const next = x.client(1, { token: fixed, peer: 'fixed' });
  await online(next);
  assert.ok(await told);
  await waitFor('the older connection is ended', () => !old.connected, 3000);
  const other = x.client(0, { token: token({ sub: user }), peer: 'other' });
  await online(other);
  assert.deepEqual(next.ends, [], 'another peer id is another peer');
  await refused(x, { token: fixed, peer: 'other' }, 'FORBIDDEN');
});

scenario('a session is not recovered with a token that has expired meanwhile', async (x) => {
  const exp = now() + 1;
  const client = x.client(0, { token: token({ sub: fresh('user'), exp }) });
  await online(client);
  // Servers may allow some seconds for clocks that differ.
  await waitFor('the token has expired', () => now() > exp + 6);
  if (client.connected) drop(client);
  await waitFor('the client is refused', () => client.refusals.some((r) => r.code === 'UNAUTHENTICATED'));
  assert.equal(client.connected, false);
});

scenario('the key works from the flag as from the environment', async (x) => {
  const replica = await x.cluster.replica(fresh('flag'), { 'token-key': key });
  replica.env = {};
  try {
    await replica.again();
    const clients = new Clients([replica.url]);
    const client = clients.client(0, { token: token({ sub: 'alice' }) });
    await online(client);
    clients.close();
    noSecret(replica.log, 'the log');
  } finally {
    await replica.kill();
  }
});

function noSecret(text, where) {
  assert.ok(!text.includes(key), `the key is in ${where}`);
  for (const made of issued) {
    const signature = made.split('.')[2];
    assert.ok(!signature || !text.includes(signature), `a token is in ${where}`);
  }
}

// The last one: it reads what all the others have left behind.
scenario('neither the key nor a token is in any log or on any page', async () => {
  assert.ok(issued.length > 10);
  for (const r of cluster.replicas) {
    assert.ok(r.log.length > 0, 'there is a log');
    noSecret(r.log, 'the log');
    for (const path of ['/healthz', '/readyz', '/metrics']) noSecret((await get(r.url + path)).body, path);
  }
});
