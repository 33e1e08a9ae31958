// Who may do what in rooms and with settings, what is refused, and what rooms are limited to.
import assert from 'node:assert/strict';
import { ask, fresh, suite, waitFor } from './harness.mjs';
import { agree, fine, hears, join, later, leave, listen, newRoom, peer, peers, refused, shows } from './rooms.mjs';
import { newKey, sign } from './token.mjs';

const { scenario } = suite();

scenario('each role may what is its own, and nobody from outside anything, though he knows the room\'s id', async (x) => {
  const id = newRoom();
  const roles = ['host', 'guest', 'member', 'monitor'];
  const inside = await peers(x, { host: 0, guest: 1, member: 0, monitor: 1 });
  for (const role of roles) await join(inside[role], id, role);
  const outsider = await peer(x, 0, 'outsider');
  const former = await peer(x, 1, 'former');
  await join(former, id, 'member');
  await leave(former, id);
  const other = await peer(x, 1, 'host', {}, `${x.user}-other`);
  await join(other, newRoom(), 'host');
  const all = { ...inside, outsider, former, other };
  const may = {
    'room-get': roles,
    'room-update': ['host'],
    'guest-update': ['host', 'guest'],
    'room-close': ['host'],
  };
  const body = { 'room-update': { settings: { n: 1 } }, 'guest-update': { state: { n: 1 } } };
  const before = await agree(Object.values(inside), id);
  for (const [event, allowed] of Object.entries(may)) {
    for (const [who, c] of Object.entries(all)) if (!allowed.includes(who)) await refused('FORBIDDEN', c, event, { room: id, ...body[event] });
  }
  assert.deepEqual(await agree(Object.values(inside), id), before, 'nothing has changed');
  for (const who of roles) await fine(inside[who], 'room-get', { room: id });
  await fine(inside.guest, 'guest-update', { room: id, state: { n: 1 } });
  await fine(inside.host, 'guest-update', { room: id, state: { m: 1 } });
  await fine(inside.host, 'room-update', { room: id, settings: { n: 1 } });
  const after = await agree(Object.values(inside), id);
  assert.deepEqual([after.settings, after.guestState], [{ n: 1 }, { n: 1, m: 1 }]);
  // The role counts that it has now.
  await join(inside.host, id, 'member');
  await refused('FORBIDDEN', inside.host, 'room-update', { room: id, settings: { n: 2 } });
  await join(inside.member, id, 'host');
  await fine(inside.member, 'room-close', { room: id });
  for (const role of roles) assert.equal((await hears(inside[role], 'room-closed')).reason, 'closed');
  for (const c of Object.values(all)) await refused('FORBIDDEN', c, 'room-get', { room: id });
});

scenario('a bad argument is refused, changes nothing, and leaves the connection usable', async (x) => {
  const id = newRoom();
  const { host, w } = await peers(x, { host: 0, w: 1 });
  await join(host, id, 'host');
  await join(w, id, 'monitor');
  const key = fresh('key');
  const cluster = await fine(host, 'settings-set', { key, value: 1 });
  const before = await agree([host, w], id);
  const deep = (n) => (n ? { a: deep(n - 1) } : 1);
  const names = [undefined, null, '', 5, {}, [], true, 'x'.repeat(257), 'a\u0000b', 'a\nb'];
  const objects = [undefined, null, 5, 'x', [], true, deep(40)];
  const noBody = [undefined, null, 5, 'x', [], [{ room: id }], true];
  const bad = [
    ...['room-join', 'room-leave', 'room-get', 'room-update', 'guest-update', 'room-close', 'settings-set'].flatMap((e) => noBody.map((b) => [e, b])),
    ...names.flatMap((n) => [['room-join', { room: n }], ['room-leave', { room: n }], ['room-close', { room: n }], ['room-get', { room: n }],
      ['room-update', { room: n, settings: {} }], ['guest-update', { room: n, state: {} }], ['settings-set', { key: n, value: 1 }]]),
    ...['owner', 'HOST', 5, {}, ['host']].map((role) => ['room-join', { room: id, role }]),
    ...[5, {}, 'x'.repeat(257), 'a\u0007'].map((name) => ['room-join', { room: id, role: 'host', name }]),
    ...objects.flatMap((o) => [['room-update', { room: id, settings: o }], ['guest-update', { room: id, state: o }]]),
    ...[5, {}, []].flatMap((v) => [['room-update', { room: id, settings: { n: 1 }, expectedVersion: v }],
      ['guest-update', { room: id, state: { n: 1 }, expectedVersion: v }], ['settings-set', { key, value: 2, expectedVersion: v }]]),
    ['settings-set', { key }],
    ['settings-get', { key: 5 }], ['settings-get', 'x'], ['settings-get', []],
    ...[-1, 501, 'x', 1.5, {}].map((limit) => ['rooms-watch', { limit }]),
    ['rooms-watch', { after: 5 }], ['rooms-watch', 'x'],
  ];
  const unexpected = [];
  for (const [event, body] of bad) {
    const answer = await ask(host, event, body);
    if (answer.code !== 'BAD_REQUEST' || !answer.error) unexpected.push([event, body, answer]);
  }
  assert.deepEqual(unexpected, [], `of ${bad.length}`);
  const withoutAck = bad.slice(0, 20);
  for (const [event, body] of withoutAck) host.emit(event, body);
  assert.deepEqual(await agree([host, w], id), before);
  assert.equal((await fine(host, 'settings-get', { key })).version, cluster.version);
  await fine(host, 'room-update', { room: id, settings: { fine: true } });
  assert.deepEqual(host.ends, []);
});

scenario('limits of rooms have codes, and hold against racing joins', async (x) => {
  const cluster = await x.alone({ flags: { 'max-room-peers': 4, 'max-peer-rooms': 3, 'max-room-state': 200, 'max-meta': 50 } });
  const on = Object.assign(cluster.clients, { user: x.user });
  const all = await Promise.all(Array.from({ length: 10 }, (_, n) => peer(on, n % 2, `p${n}`)));
  for (let round = 0; round < 5; round++) {
    const id = newRoom();
    const acks = await Promise.all(all.map((c) => ask(c, 'room-join', { room: id })));
    const inside = all.filter((_, n) => acks[n].ok);
    assert.equal(inside.length, 4, JSON.stringify(acks.map((a) => a.code ?? 'ok')));
    assert.ok(acks.every((a) => a.ok || a.code === 'TOO_MANY'));
    await join(inside[0], id, 'host'); // who is in may change its role
    await leave(inside[0], id);
    await join(all.find((c) => !inside.includes(c)), id, 'host');
    for (const c of all) await leave(c, id);
  }
  const [a, b] = all;
  const ids = [newRoom(), newRoom(), newRoom(), newRoom()];
  for (const id of ids.slice(0, 3)) await join(a, id, 'monitor');
  await refused('TOO_MANY', a, 'room-join', { room: ids[3], role: 'monitor' });
  await join(a, ids[2], 'host');
  await leave(a, ids[0]);
  await join(a, ids[3], 'monitor');
  await join(b, ids[0], 'host');
  await join(b, ids[3], 'host'); // a move is no room more

  const id = newRoom();
  await refused('TOO_LARGE', b, 'room-join', { room: id, meta: 'x'.repeat(60) });
  await join(b, id, 'host', { meta: 'x'.repeat(40) });
  await refused('TOO_LARGE', b, 'room-update', { room: id, settings: { s: 'x'.repeat(250) } });
  await refused('TOO_LARGE', b, 'guest-update', { room: id, state: { s: 'x'.repeat(250) } });
  await fine(b, 'room-update', { room: id, settings: { s: 'x'.repeat(150) } });
  await refused('TOO_LARGE', b, 'room-update', { room: id, settings: { t: 'x'.repeat(60) } });
  await fine(b, 'room-update', { room: id, settings: { s: null, t: 'x'.repeat(60) } });
  assert.deepEqual((await agree([b], id)).settings, { t: 'x'.repeat(60) });
  await refused('TOO_LARGE', b, 'settings-set', { key: fresh('key'), value: 'x'.repeat(66_000) });
  assert.deepEqual([a.ends, b.ends], [[], []]);
});

const key = newKey();
scenario('a token grants roles in rooms by pattern, settings by word, and reading everything to an admin', async (x) => {
  const cluster = await x.alone({ flags: { insecure: false }, env: { HOLDFAST_TOKEN_KEY: key } });
  const on = cluster.clients;
  const enter = async (i, name, claims) => Object.assign(listen(await on.caller(i, undefined, { token: sign(key, { sub: x.user, ...claims }), peer: name })), { peer: name });
  const base = fresh('team');
  const host = await enter(0, 'host', { rooms: [{ pattern: `${base}-*`, roles: ['host'] }], settings: 'write' });
  const guest = await enter(1, 'guest', { rooms: [{ pattern: `${base}-a`, roles: ['guest', 'monitor'] }, { pattern: `${base}-?`, roles: ['member'] }], settings: 'read' });
  const none = await enter(0, 'none', {});
  const admin = await enter(1, 'admin', { admin: true });
  const [a, b] = [`${base}-a`, `${base}-b`];

  for (const role of ['guest', 'member', 'monitor']) await refused('FORBIDDEN', host, 'room-join', { room: a, role });
  await refused('FORBIDDEN', host, 'room-join', { room: base, role: 'host' });
  await refused('FORBIDDEN', host, 'room-join', { room: a }); // as member
  for (const role of ['host', 'guest', 'member', 'monitor']) for (const c of [none, admin]) await refused('FORBIDDEN', c, 'room-join', { room: a, role });
  await join(host, a, 'host');
  await refused('FORBIDDEN', guest, 'room-join', { room: b, role: 'guest' });
  await join(guest, a, 'guest');
  await join(guest, b, 'member');
  await refused('FORBIDDEN', guest, 'room-join', { room: `${base}-long`, role: 'member' });

  // Whose grants allow host there may update from outside, open or not; who is inside goes by the role that he has.
  await fine(host, 'room-update', { room: b, settings: { from: 'outside' } });
  await fine(host, 'room-update', { room: `${base}-early`, settings: { from: 'before' } });
  await refused('FORBIDDEN', host, 'room-update', { room: base, settings: { no: 1 } });
  await refused('FORBIDDEN', guest, 'room-update', { room: `${base}-c`, settings: { no: 1 } });
  await refused('FORBIDDEN', guest, 'room-update', { room: a, settings: { no: 1 } });
  await refused('FORBIDDEN', host, 'room-get', { room: b });
  await refused('FORBIDDEN', host, 'room-close', { room: b });
  assert.deepEqual((await shows(guest, b, (s) => s.settings.from)).settings, { from: 'outside' });
  assert.deepEqual((await shows(admin, b, (s) => s.settings.from)).settings, { from: 'outside' }, 'an admin reads every room');
  await refused('FORBIDDEN', admin, 'room-update', { room: b, settings: { no: 1 } });
  await refused('FORBIDDEN', admin, 'room-close', { room: b });
  await refused('FORBIDDEN', none, 'room-get', { room: a });

  const setting = fresh('setting');
  for (const c of [guest, none, admin]) await refused('FORBIDDEN', c, 'settings-set', { key: setting, value: 1 });
  await refused('FORBIDDEN', none, 'settings-get', {});
  const { version } = await fine(host, 'settings-set', { key: setting, value: 1 });
  for (const c of [host, guest, admin]) {
    await hears(c, (m) => m.event === 'settings-changed' && m.version === version);
    assert.deepEqual((await fine(c, 'settings-get', { key: setting })).settings, { [setting]: 1 });
  }
  // Watchers see what they have some role in, an admin all.
  const seen = async (c) => (await fine(c, 'rooms-watch', {})).rooms.map((r) => r.id);
  assert.deepEqual(await seen(host), [a, b, `${base}-early`]);
  assert.deepEqual(await seen(guest), [a, b]);
  assert.deepEqual(await seen(none), []);
  assert.deepEqual(await seen(admin), [a, b, `${base}-early`]);
  await fine(host, 'room-update', { room: `${base}-early`, settings: { n: 2 } });
  await fine(host, 'room-update', { room: a, settings: { n: 2 } });
  for (const c of [host, guest, admin]) await hears(c, (m) => m.event === 'rooms-changed' && m.room.id === a);
  await hears(admin, (m) => m.event === 'rooms-changed' && m.room.id === `${base}-early`);
  assert.ok(![...guest.heard, ...none.heard].some((m) => m.room?.id === `${base}-early`));
  assert.ok(!none.heard.some((m) => m.event === 'rooms-changed' || m.event === 'settings-changed'));
});

scenario('rooms-watch gives the rooms in pages and then every change, so that a list of rooms stays right', async (x) => {
  const cluster = await x.alone();
  const on = Object.assign(cluster.clients, { user: x.user });
  const { a, b, w, v } = await peers(on, { a: 0, b: 1, w: 0, v: 1 });
  const base = fresh('hall');
  const ids = Array.from({ length: 25 }, (_, n) => `${base}-${String(n).padStart(3, '0')}`);
  for (const id of ids) await join(a, id, 'member', { name: 'A', meta: { m: 1 } });
  await shows(a, ids.at(-1), () => true);
  await fine(a, 'room-update', { room: `${base}-unused`, settings: { n: 1 } });

  // A list as a client keeps it: what it was given, and what has changed since.
  const keep = (c) => {
    c.rooms = new Map();
    const put = (r) => { const was = c.rooms.get(r.id); if (!was || !later(was.version, r.version)) c.rooms.set(r.id, r); };
    c.on('rooms-changed', ({ room: r }) => put(r));
    return async () => {
      let after;
      let pages = 0;
      do {
        const page = await fine(c, 'rooms-watch', { limit: 10, after });
        assert.ok(page.rooms.length <= 10 && page.version, JSON.stringify(page).slice(0, 200));
        page.rooms.forEach(put);
        after = page.next;
        pages++;
      } while (after);
      return pages;
    };
  };
  const [readW, readV] = [keep(w), keep(v)];
  let n = 0;
  const churn = on.loop(async () => {
    const id = ids[n++ % ids.length];
    return ask(b, n % 3 ? 'room-join' : 'room-leave', n % 3 ? { room: id } : { room: ids[(n * 7) % ids.length] });
  });
  await waitFor('rooms change', () => churn.results.length > 5);
  assert.equal(await readW(), 3);
  await readV();
  const so = churn.results.length;
  await waitFor('they change on', () => churn.results.length > so + 50);
  assert.deepEqual((await churn.stop()).filter((r) => !r.ok), []);
  await fine(a, 'room-update', { room: `${base}-new`, settings: { n: 1 } });
  for (const c of [w, v]) {
    let all;
    await waitFor('the list is as it is', async () => {
      all = (await fine(c, 'rooms-watch', {})).rooms;
      return JSON.stringify(all) === JSON.stringify([...c.rooms.values()].sort((p, q) => (p.id < q.id ? -1 : 1)));
    }, 5000).catch((err) => assert.fail(`${err.message}\n${JSON.stringify(all)}\n${JSON.stringify([...c.rooms.values()])}`));
    assert.equal(all.length, 27);
    for (const r of all) {
      assert.deepEqual([r.peerCount, 'settings' in r, 'guestState' in r, r.peers.some((p) => 'meta' in p)], [r.peers.length, false, false, false]);
      if (r.open) assert.ok(r.owner.instance && r.owner.url); else assert.equal(r.owner, undefined);
    }
  }
  await fine(w, 'rooms-unwatch', {});
  const heard = w.heard.filter((m) => m.event === 'rooms-changed').length;
  await leave(a, ids[0]);
  await hears(v, (m) => m.event === 'rooms-changed' && m.room.id === ids[0] && !m.room.peers.some((p) => p.peer === 'a'));
  await fine(w, 'rooms-unwatch');
  assert.equal(w.heard.filter((m) => m.event === 'rooms-changed').length, heard);
});

scenario('a watcher that does not read is cut, and nobody else notices', async (x) => {
  const cluster = await x.alone({ flags: { 'outbox-bytes': 1_000_000 } });
  const on = Object.assign(cluster.clients, { user: x.user.padEnd(250, 'u') });
  const id = newRoom();
  const all = await Promise.all(Array.from({ length: 60 }, (_, n) => peer(on, n % 2, `p${n}-`.padEnd(250, 'p'))));
  await Promise.all(all.map((c) => join(c, id, 'member', { name: 'n'.repeat(250) })));
  const { host, slow, quick } = await peers(on, { host: 0, slow: 0, quick: 0 });
  await join(host, id, 'host');
  for (const c of [slow, quick]) await fine(c, 'rooms-watch', {});
  slow.io.reconnection(false);
  const wire = slow.io.engine.transport.ws._socket;
  wire.pause();
  // What the kernels buffer for it comes first; so it takes some megabytes of summaries.
  const cut = async () => (await fine(quick, 'presence-get', {})).peers.find((p) => p.peer === 'slow').away;
  let n = 0;
  for (const began = performance.now(); !(n % 50 === 0 && await cut());) {
    assert.ok(performance.now() - began < 60_000, `${n} changes, and it still watches`);
    await fine(host, 'guest-update', { room: id, state: { n: ++n } });
  }
  wire.resume();
  await waitFor('it knows', () => slow.ends.length);
  const state = await agree([host], id);
  assert.deepEqual([state.guestState, state.peers.length], [{ n }, 61]);
  const last = await hears(quick, (m) => m.event === 'rooms-changed' && m.version === state.version);
  assert.equal(last.room.peerCount, 61);
  for (const c of [...all, host, quick]) assert.deepEqual(c.ends, []);
});
