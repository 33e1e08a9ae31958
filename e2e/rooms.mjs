// What the tests of rooms share: clients that write down what they are told, and what must hold of it.
import assert from 'node:assert/strict';
import { ask, fresh, waitFor } from './harness.mjs';

// listen writes down what the server pushes from now on, in order, as {event, ...body}, and where the client may have
// missed something, as {missed: true}: its connection ended, or it left a room.
export function listen(socket) {
  const heard = [];
  socket.heard = heard;
  socket.onAny((event, body) => heard.push({ event, ...body }));
  socket.on('disconnect', () => heard.push({ missed: true }));
  return socket;
}

// peer connects a listening client with an identity of its own.
export const peer = async (x, i, name, options = {}, user = x.user) => Object.assign(listen(await x.caller(i, user, { peer: name }, options)), { peer: name, user });

// peers connects several to one replica each, in turn, as in {host: 0, guest: 1}.
export async function peers(x, where) {
  const all = await Promise.all(Object.entries(where).map(async ([name, i]) => [name, await peer(x, i, name)]));
  return Object.fromEntries(all);
}

export async function fine(socket, event, body, within) {
  const answer = await ask(socket, event, body, within);
  assert.equal(answer.ok, true, `${event} ${JSON.stringify(body)}: ${JSON.stringify(answer)}`);
  return answer;
}

export async function refused(code, socket, event, body) {
  const answer = await ask(socket, event, body);
  assert.equal(answer.ok, false, `${event} ${JSON.stringify(body)} was accepted: ${JSON.stringify(answer)}`);
  assert.equal(answer.code, code, `${event} ${JSON.stringify(body)}: ${JSON.stringify(answer)}`);
  assert.ok(answer.error, 'a text for people');
  return answer;
}

export const join = (socket, room, role, more = {}) => fine(socket, 'room-join', { room, role, ...more });
export async function leave(socket, id) {
  await fine(socket, 'room-leave', { room: id });
  socket.heard.push({ missed: true, room: id });
}

export const room = async (socket, id) => (await fine(socket, 'room-get', { room: id })).room;
// shows waits until the client's replica shows the room as the probe wants it: what another one has acknowledged may be
// a moment away.
export const shows = (socket, id, probe) => waitFor(`${socket.peer} sees it`, async () => { const state = await room(socket, id); return probe(state) && state; });
export const card = (state, name) => state.peers.find((p) => p.peer === name);
export const newRoom = () => fresh('room');

const roomEvents = ['peer-joined', 'peer-away', 'peer-back', 'peer-left', 'room-settings', 'guest-state', 'room-owner', 'room-closed'];

// told is what a client was told of a room, of one peer if it is named.
export const told = (socket, id, name) => socket.heard.filter((m) => roomEvents.includes(m.event) && m.room === id && (!name || m.peer === name));

// story is told without what differs from run to run.
export const story = (socket, id, name) => told(socket, id, name).map((m) => (m.peer ? `${m.event} ${m.peer}` : m.event) + (m.reason ? `: ${m.reason}` : ''));

export const hears = (socket, what, within) => waitFor(`${socket.peer} hears of ${what}`, () => socket.heard.find(typeof what === 'function' ? what : (m) => m.event === what), within);

export const later = (a, b) => {
  const [[ams, as], [bms, bs]] = [a, b].map((v) => v.split('-').map(BigInt));
  return ams === bms ? as > bs : ams > bms;
};

// chained: each push to a client names the version that the one before it had, and those of one event share both.
export function chained(socket, id) {
  let a;
  for (const b of socket.heard) {
    if (b.missed && (b.room ?? id) === id) a = undefined;
    if (b.room !== id || !roomEvents.includes(b.event)) continue;
    const pair = () => `${socket.peer}: ${JSON.stringify([a, b])}`;
    if (a && b.version === a.version) assert.equal(b.previous, a.previous, pair());
    else if (a) {
      assert.equal(b.previous, a.version, `a gap for ${pair()}`);
      assert.ok(later(b.version, a.version), `backwards for ${pair()}`);
    }
    a = b;
  }
}

// agree waits until every client is told the same of the room, as an answer and by pushes, and checks that nobody was
// told anything with a gap.
export async function agree(clients, id) {
  let states;
  await waitFor('all replicas show the same room', async () => {
    states = await Promise.all(clients.map((c) => room(c, id)));
    return states.every((s) => JSON.stringify(s) === JSON.stringify(states[0])) && clients.every((c) => told(c, id).at(-1)?.version === states[0].version);
  }).catch((err) => assert.fail(`${err.message}\n${JSON.stringify(states, null, 1)}\n${JSON.stringify(clients.map((c) => told(c, id).at(-1)), null, 1)}`));
  for (const c of clients) chained(c, id);
  owned(states[0]);
  return states[0];
}

// owned: an open room has an owner, and never an empty one.
export function owned(state) {
  assert.equal(state.open, true);
  assert.ok(state.owner?.instance && state.owner?.url, `an empty owner: ${JSON.stringify(state.owner)}`);
}

// neverEmpty: whatever a client was told of owners names one.
export function neverEmpty(...clients) {
  for (const c of clients) for (const m of c.heard) {
    const owner = m.owner ?? m.room?.owner;
    if (owner) assert.ok(owner.instance && owner.url, JSON.stringify(m));
  }
}
